// What ThreadSanitizer must not report: Debian's libraries are not
// instrumented, so it sees what the templates in their headers do, compiled
// here, but not the atomics within the libraries that order it.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LS_THREAD_SANITIZER
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(LS_THREAD_SANITIZER)

extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return
      // Inside of the libraries.
      "race:libgrpc.so\n"
      "race:libgrpc++.so\n"
      "race:libgpr.so\n"
      "race:libabsl_\n"
      // A call and its operations, which gRPC hands from the thread that began
      // them to the one that ends them.  Our reactions run below none of these
      // but the last, which runs OnDone.
      "race_top:grpc::\n"
      "race:grpc::CompletionQueue::Pluck\n"
      "race:grpc::internal::CallOp\n"
      "race:grpc::internal::CallbackWithSuccessTag::CallbackWithSuccessTag\n"
      "race:grpc::internal::CallbackWithSuccessTag::Set\n"
      "race:grpc::internal::CallbackWithStatusTag::CallbackWithStatusTag\n"
      "race:ClientCallbackReaderWriterImpl*MaybeFinish\n"
      // That Gloo's thread has let go of a buffer before the buffer ends is
      // counted in an atomic.  This is about the buffers' own fields, not the
      // memory they stand for.
      "race:gloo::transport::tcp::UnboundBuffer::\n"
      "race:default_delete<gloo::transport::UnboundBuffer>\n";
}

#endif
