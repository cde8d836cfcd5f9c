#include "cli/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/text.h"
#include "common/check.h"

namespace lockstep::cli {

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::Add(std::vector<std::string> row) {
  LS_CHECK(row.size() == columns_.size());
  for (std::string& text : row) text = OneLine(text);
  rows_.push_back(std::move(row));
}

void Table::Print(std::ostream& out) const {
  std::vector<Column> columns = columns_;
  for (size_t i = 0; i < columns.size(); ++i) {
    for (const auto& row : rows_) {
      columns[i].width = std::max(columns[i].width, DisplayWidth(row[i]));
    }
  }
  out << Titles(columns);
  for (const auto& row : rows_) out << Row(columns, row);
}

std::string Table::Titles(const std::vector<Column>& columns) {
  std::vector<std::string> titles;
  for (const Column& column : columns) titles.push_back(column.title);
  return Row(columns, titles);
}

std::string Table::Row(const std::vector<Column>& columns,
                       const std::vector<std::string>& row) {
  LS_CHECK(row.size() == columns.size());
  std::string line;
  for (size_t i = 0; i < row.size(); ++i) {
    const int width =
        std::max(columns[i].width, DisplayWidth(columns[i].title));
    const std::string blanks(
        static_cast<size_t>(std::max(0, width - DisplayWidth(row[i]))), ' ');
    absl::StrAppend(&line, i == 0 ? "" : "  ", columns[i].right ? blanks : "",
                    row[i], columns[i].right ? "" : blanks);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace lockstep::cli
