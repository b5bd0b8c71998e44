// The provider "mkl": the mkl wheel, if it is installed, through `mkl_packed/_mkl.so`.
#include <string>

#include <dlfcn.h>

#include "core/common/error.h"
#include "mkl_packed/buffer.h"
#include "mkl_packed/mkl/mkl_layers.h"
#include "mkl_packed/packed_gemm.h"

namespace paddle_ngraph::mkl_packed {

namespace {

const MklFunctions* load() {
  Dl_info here;
  dladdr(reinterpret_cast<const void*>(&load), &here);
  const std::string core = here.dli_fname;
  const std::string path = core.substr(0, core.rfind('/') + 1) + "mkl_packed/_mkl.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw NgraphError(concat("the provider mkl cannot be used: ", dlerror(),
                             "; build with WITH_MKL=ON, with the package mkl installed, or set "
                             "FLAGS_mkl_packed_provider=onednn"));
  }
  using Function = const MklFunctions* (*)();
  return reinterpret_cast<Function>(dlsym(library, "mkl_functions"))();
}

const MklFunctions& mkl() {
  static const MklFunctions* functions = load();
  return *functions;
}

float beta(bool accumulate) { return accumulate ? 1.0f : 0.0f; }

// A right operand of matmuls, and its sizes.
struct RightOperand {
  Matrix b;
  int64_t n;
  int64_t k;
};

class MklMatmul : public Matmul {
 public:
  MklMatmul(const RightOperand& operand, const MatmulShape& shape, bool is_packed)
      : operand_(operand), shape_(shape), is_packed_(is_packed) {}

  void compute(const float* a, const uint16_t* /*rounded*/, float* c) override {
    const auto& [b, n, k] = operand_;
    const float scale = beta(shape_.accumulate);
    if (is_packed_) {
      mkl().compute(shape_.m, n, k, a, shape_.lda, b.data, c, shape_.ldc, scale);
    } else {
      mkl().gemm(shape_.m, n, k, false, a, shape_.lda, b.transposed, b.data, b.ld, c, shape_.ldc,
                 scale);
    }
  }

 private:
  RightOperand operand_;
  MatmulShape shape_;
  bool is_packed_;
};

class MklMatrix : public PackedMatrix {
 public:
  MklMatrix(const Matrix& b, int64_t m, int64_t n, int64_t k)
      : m_(m),
        memory_(mkl().pack_size(m, n, k) / sizeof(float) + 1),
        operand_{{memory_.data(), n}, n, k} {
    mkl().pack(m, n, k, b.transposed, b.data, b.ld, memory_.data());
  }

  std::unique_ptr<Matmul> make_matmul(const MatmulShape& shape) const override {
    return std::make_unique<MklMatmul>(operand_, shape, /*is_packed=*/true);
  }

  // Whether a left operand has as many rows as MKL has packed for.
  bool fits(int64_t m) const override { return m == m_; }

 private:
  int64_t m_;
  Buffer memory_;
  RightOperand operand_;
};

class MklReference : public PackedMatrix {
 public:
  explicit MklReference(const RightOperand& operand) : operand_(operand) {}

  std::unique_ptr<Matmul> make_matmul(const MatmulShape& shape) const override {
    return std::make_unique<MklMatmul>(operand_, shape, /*is_packed=*/false);
  }

 private:
  RightOperand operand_;
};

class MklProvider : public GemmProvider {
 public:
  MklProvider() { mkl(); }

  const char* name() const override { return "mkl"; }

  std::shared_ptr<const PackedMatrix> pack(const Matrix& b, int64_t m, int64_t n,
                                           int64_t k) const override {
    return std::make_shared<MklMatrix>(b, m, n, k);
  }

  std::shared_ptr<const PackedMatrix> refer(const Matrix& b, int64_t n, int64_t k) const override {
    return std::make_shared<MklReference>(RightOperand{b, n, k});
  }

  void gemm(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k, float* c,
            int64_t ldc, bool accumulate) const override {
    mkl().gemm(m, n, k, a.transposed, a.data, a.ld, b.transposed, b.data, b.ld, c, ldc,
               beta(accumulate));
  }
};

}  // namespace

const GemmProvider& mkl_provider() {
  static const MklProvider provider;
  return provider;
}

}  // namespace paddle_ngraph::mkl_packed
