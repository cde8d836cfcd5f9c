// What ThreadSanitizer must not report: Debian's libraries are not
// instrumented, so it sees what the templates in their headers do, compiled
// here, but not the atomics within the libraries that order it.
#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_suppressions() {
  return
      // A call and its operations, which gRPC hands from the thread that began
      // them to the one that ends them.  Our reactions run below none of these
      // but the last, which runs OnDone.
      "race_top:grpc::\n"
      "race:grpc::internal::CallOp\n"
      "race:grpc::internal::CallbackWithSuccessTag::CallbackWithSuccessTag\n"
      "race:grpc::internal::CallbackWithSuccessTag::Set\n"
      "race:grpc::internal::CallbackWithStatusTag::CallbackWithStatusTag\n"
      "race:ClientCallbackReaderWriterImpl*MaybeFinish\n"
      // That Gloo's thread has let go of a buffer before the buffer ends is
      // counted in an atomic.  This is about the buffers' own fields, not the
      // memory they stand for.
      "race:gloo::transport::tcp::UnboundBuffer::\n";
}
#endif
