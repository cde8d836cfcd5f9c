#include "worker/data/joined_files.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {

absl::StatusOr<JoinedFiles> JoinedFiles::Open(
    const std::string& field, const std::vector<std::string>& paths,
    const std::function<absl::StatusOr<FileForm>(const RandomAccessFile&)>&
        form_of) {
  LS_CHECK(!paths.empty());
  JoinedFiles joined;
  int64_t joined_bytes = 0;
  for (const std::string& path : paths) {
    const auto wrong = [&](const std::string& what) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": ", path, ": ", what));
    };
    absl::StatusOr<RandomAccessFile> file = RandomAccessFile::Open(path);
    if (!file.ok()) return Annotate(file.status(), field);
    if (file->size() == 0) return wrong("is empty; expected tokens");
    const absl::StatusOr<FileForm> form = form_of(*file);
    if (!form.ok()) return Annotate(form.status(), field);
    const int64_t bytes = file->size() - form->header_bytes;
    LS_CHECK(bytes >= 0 && form->unit_bytes > 0);
    if (bytes == 0) return wrong("has a header and no tokens");
    if (bytes % form->unit_bytes != 0) {
      return wrong(absl::StrCat("has ", bytes,
                                " bytes; expected a multiple of ",
                                form->unit_bytes, ", as data.format says"));
    }
    if (!joined.files_.empty() && form->unit_bytes != joined.unit_bytes_) {
      return wrong(absl::StrCat("has tokens of ", form->unit_bytes,
                                " bytes; expected ", joined.unit_bytes_,
                                ", as in ", joined.files_.front().path));
    }
    if (bytes > std::numeric_limits<int64_t>::max() - joined_bytes) {
      return wrong("with it there are more than 2^63 bytes");
    }
    joined.unit_bytes_ = form->unit_bytes;
    File& added = joined.files_.emplace_back();
    added.path = path;
    added.header_bytes = form->header_bytes;
    added.first_byte = joined_bytes;
    added.byte_count = bytes;
    added.size = file->size();
    joined_bytes += bytes;
    if (joined.files_.size() <= kOpenFilesMax) added.open = *std::move(file);
  }
  return joined;
}

const JoinedFiles::File& JoinedFiles::FileAt(int64_t byte) const {
  const auto after = std::upper_bound(
      files_.begin(), files_.end(), byte,
      [](int64_t b, const File& f) { return b < f.first_byte; });
  return *(after - 1);
}

absl::Status JoinedFiles::Read(int64_t begin, int64_t count,
                               unsigned char* out) const {
  while (count > 0) {
    const File& file = FileAt(begin);
    const int64_t offset = begin - file.first_byte;
    const int64_t part = std::min(count, file.byte_count - offset);
    if (file.open) {
      RETURN_IF_ERROR(file.open->ReadAt(file.header_bytes + offset, part, out));
    } else {
      ASSIGN_OR_RETURN(const RandomAccessFile reopened,
                       RandomAccessFile::Open(file.path));
      if (reopened.size() != file.size) {
        return absl::DataLossError(absl::StrCat(
            file.path, ": has ", reopened.size(), " bytes; it had ", file.size,
            " when the job started; restore it"));
      }
      RETURN_IF_ERROR(reopened.ReadAt(file.header_bytes + offset, part, out));
    }
    begin += part;
    count -= part;
    out += part;
  }
  return absl::OkStatus();
}

std::string JoinedFiles::PlaceOf(int64_t byte) const {
  const File& file = FileAt(byte);
  return absl::StrCat(file.path, ": byte ",
                      file.header_bytes + byte - file.first_byte);
}

}  // namespace lockstep
