#include "kernels/cpu/bfloat16_gemm.h"

#include <omp.h>

#include <array>
#include <dnnl.hpp>
#include <map>
#include <new>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lockstep::kernels::cpu {
namespace {

// A shape that a product was prepared for.
using Key = std::array<int64_t, 9>;

struct Prepared {
  dnnl::matmul product;
  dnnl::memory a, b, c, workspace;
};

// More shapes than any one model has.
constexpr size_t kPreparedMax = 256;

// A thread's own.
class Library {
 public:
  Library() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    // OpenMP keeps this number per thread.  oneDNN splits some sums over
    // threads, which changes their bits.
    omp_set_num_threads(1);
  }

  void Run(int64_t m, int64_t n, int64_t k, const Bfloat16MatMulInput& a,
           const Bfloat16MatMulInput& b, float beta, float* c,
           int64_t c_stride) {
    const Key key{m,
                  n,
                  k,
                  a.stride,
                  b.stride,
                  c_stride,
                  a.transposed,
                  b.transposed,
                  beta != 0};
    auto at = prepared_.find(key);
    if (at == prepared_.end()) {
      if (prepared_.size() >= kPreparedMax) prepared_.clear();
      at = prepared_.emplace(key, Prepare(m, n, k, a, b, beta, c_stride)).first;
    }
    Prepared& p = at->second;
    // oneDNN takes its inputs without const, and only reads them.
    p.a.set_data_handle(const_cast<Bfloat16*>(a.data));
    p.b.set_data_handle(const_cast<Bfloat16*>(b.data));
    p.c.set_data_handle(c);
    p.workspace.set_data_handle(workspace_.data());
    p.product.execute(stream_, {{DNNL_ARG_SRC, p.a},
                                {DNNL_ARG_WEIGHTS, p.b},
                                {DNNL_ARG_DST, p.c},
                                {DNNL_ARG_SCRATCHPAD, p.workspace}});
    stream_.wait();
  }

 private:
  Prepared Prepare(int64_t m, int64_t n, int64_t k,
                   const Bfloat16MatMulInput& a, const Bfloat16MatMulInput& b,
                   float beta, int64_t c_stride) {
    using Type = dnnl::memory::data_type;
    const auto input = [](int64_t rows, int64_t columns,
                          const Bfloat16MatMulInput& x) {
      return dnnl::memory::desc({rows, columns}, Type::bf16,
                                x.transposed ? dnnl::memory::dims{1, x.stride}
                                             : dnnl::memory::dims{x.stride, 1});
    };
    const dnnl::memory::desc to({m, n}, Type::f32,
                                dnnl::memory::dims{c_stride, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (beta != 0) {
      dnnl::post_ops then;
      then.append_sum(1);
      attributes.set_post_ops(then);
    }
    const dnnl::matmul::primitive_desc description(
        dnnl::matmul::desc(input(m, k, a), input(k, n, b), to), attributes,
        engine_);
    const dnnl::memory::desc workspace = description.scratchpad_desc();
    if (workspace.get_size() > workspace_.size()) {
      workspace_.resize(workspace.get_size());
    }
    return {.product = dnnl::matmul(description),
            .a = dnnl::memory(description.src_desc(), engine_, nullptr),
            .b = dnnl::memory(description.weights_desc(), engine_, nullptr),
            .c = dnnl::memory(description.dst_desc(), engine_, nullptr),
            .workspace = dnnl::memory(workspace, engine_, nullptr)};
  }

  const dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Key, Prepared> prepared_;
  std::vector<char> workspace_;
};

}  // namespace

absl::Status Bfloat16Gemm(int64_t m, int64_t n, int64_t k,
                          const Bfloat16MatMulInput& a,
                          const Bfloat16MatMulInput& b, float beta, float* c,
                          int64_t c_stride) {
  try {
    thread_local Library library;
    library.Run(m, n, k, a, b, beta, c, c_stride);
    return absl::OkStatus();
  } catch (const dnnl::error& e) {
    return absl::InternalError(absl::StrCat(
        "oneDNN's bfloat16 product: ", e.what(), ", status ",
        static_cast<int>(e.status), " for m=", m, " n=", n, " k=", k,
        " strides ", a.stride, ", ", b.stride, ", ", c_stride));
  }
}

}  // namespace lockstep::kernels::cpu
