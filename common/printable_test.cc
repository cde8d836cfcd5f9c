#include "common/printable.h"

#include <cstdlib>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// std::stod refuses denormal numbers.
double ReadBack(const std::string& text) {
  return std::strtod(text.c_str(), nullptr);
}

TEST(PrintableTest, FindsTheFirstMalformedByte) {
  EXPECT_EQ(FindInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"),
            std::nullopt);
  EXPECT_EQ(FindInvalidUtf8("\xF4\x8F\xBF\xBF"), std::nullopt);  // U+10FFFF.

  struct {
    const char* text;
    size_t at;
  } const kCases[] = {
      {"ab\x80", 2},            // A continuation alone.
      {"\xC3", 0},              // Cut short.
      {"x\xE2\x82", 1},         // Cut short.
      {"\xC0\xAF", 0},          // Overlong.
      {"\xE0\x9F\xBF", 0},      // Overlong.
      {"\xF0\x8F\xBF\xBF", 0},  // Overlong.
      {"\xED\xA0\x80", 0},      // A surrogate.
      {"\xF4\x90\x80\x80", 0},  // Above U+10FFFF.
      {"\xFF", 0},              // No such byte.
      {"\xC3\xA9\xC3\x28", 2},  // The second byte is no continuation.
  };
  for (const auto& c : kCases) EXPECT_EQ(FindInvalidUtf8(c.text), c.at);
}

TEST(PrintableTest, ControlAndDirectionCharactersAreNotPrintable) {
  EXPECT_TRUE(IsPrintableUtf8("King James, 2. Lauf \xC3\xA4\xE2\x82\xAC"));
  EXPECT_TRUE(IsPrintableUtf8("\xC2\xA0"));  // U+00A0.
  for (const char* text :
       {"a\nb", "\t", "\x1B[31m", "\x7F", "\xC2\x85", "\xC2\x9F",
        "\xE2\x80\xA8", "\xE2\x80\xAE", "\xE2\x81\xA6", "\xFF"}) {
    EXPECT_FALSE(IsPrintableUtf8(text)) << Quoted(text);
  }
  EXPECT_FALSE(IsPrintableUtf8(absl::string_view("a\0b", 3)));
}

TEST(PrintableTest, QuotedFitsOneLineAndIsCut) {
  EXPECT_EQ(Quoted("a\"b\n\x1B\xC3\xA9\xFF"),
            "\"a\\\"b\\n\\033\xC3\xA9\\377\"");
  EXPECT_EQ(Quoted("\xE2\x80\xAE"), R"("\342\200\256")");  // Turns text round.
  EXPECT_EQ(Quoted("a\xC3\xA9", 2), "\"a\"... (3 bytes)");
  EXPECT_EQ(Quoted("abcdef", 3), "\"abc\"... (6 bytes)");
  EXPECT_EQ(Quoted("abc", 3), "\"abc\"");
}

TEST(PrintableTest, DoublesAreShortAndReadBack) {
  EXPECT_EQ(DoubleText(0.1), "0.1");
  EXPECT_EQ(DoubleText(2e-5), "2e-05");
  EXPECT_EQ(DoubleText(3), "3");
  EXPECT_EQ(DoubleText(-0.0), "-0");
  EXPECT_EQ(DoubleText(std::numeric_limits<double>::quiet_NaN()), "nan");
  for (double value : {1.0 / 3, 5e-324, -2.2250738585072014e-308, 1.7e308}) {
    EXPECT_EQ(ReadBack(DoubleText(value)), value);
  }
}

}  // namespace
}  // namespace lockstep
