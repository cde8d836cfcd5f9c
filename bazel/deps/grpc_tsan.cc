// What ThreadSanitizer reports wrongly in a program that uses Debian's gRPC.
//
// Debian's libraries are not built for it, so it does not see how their threads
// hand things to each other.  Suppressed is what happens inside the libraries
// and in the code of their headers that moves a call's data in and out; not
// what our callbacks do.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LS_THREAD_SANITIZER
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(LS_THREAD_SANITIZER)

extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libgpr.so\n"
         "race:libabsl_\n"
         "race:grpc::internal::CallOp\n"
         "race:grpc::CompletionQueue::Pluck\n";
}

#endif
