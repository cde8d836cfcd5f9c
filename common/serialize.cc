#include "common/serialize.h"

#include "common/check.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace lockstep {

std::string SerializeDeterministically(
    const google::protobuf::MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  LS_CHECK(message.SerializeToCodedStream(&coded));
  coded.Trim();
  return bytes;
}

}  // namespace lockstep
