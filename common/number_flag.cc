#include "common/number_flag.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/printable.h"

namespace lockstep {

std::string PositiveNumberFault(const std::string& text, double max) {
  double value = 0;
  if (absl::SimpleAtod(text, &value) && value > 0 && value <= max) return "";
  return absl::StrCat("expected a number above 0, to ", max, ", got ",
                      Quoted(text));
}

}  // namespace lockstep
