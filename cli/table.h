// Tables in plain text.
#ifndef CLI_TABLE_H_
#define CLI_TABLE_H_

#include <ostream>
#include <string>
#include <vector>

namespace lockstep::cli {

struct Column {
  std::string title;
  bool right = false;  // Numbers stand to the right.
  int width = 0;       // At least; 0: as the title needs.
};

// Rows are kept until Print, so that columns are as wide as their contents.
class Table {
 public:
  explicit Table(std::vector<Column> columns);

  // One text per column.  Texts of others are escaped (OneLine).
  void Add(std::vector<std::string> row);

  // Titles and rows, columns two blanks apart, no blanks at a line's end.
  void Print(std::ostream& out) const;

  // One line at a time, for rows that keep coming: wide as the columns say.
  static std::string Titles(const std::vector<Column>& columns);
  static std::string Row(const std::vector<Column>& columns,
                         const std::vector<std::string>& row);

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace lockstep::cli

#endif  // CLI_TABLE_H_
