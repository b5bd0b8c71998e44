// The providers "onednn" and "onednn bf16": the oneDNN library that ships with Paddle.
#include <algorithm>
#include <cstring>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "core/common/caches.h"
#include "core/common/error.h"
#include "core/common/fork_safe_mutex.h"
#include "core/common/lru_cache.h"
#include "mkl_packed/buffer.h"
#include "mkl_packed/packed_gemm.h"
#include "mkl_packed/rounded.h"
#include "mkl_packed/threads.h"

namespace paddle_ngraph::mkl_packed {

namespace {

using dnnl::matmul;
using dnnl::memory;
using tag = memory::format_tag;
using Type = memory::data_type;

const CacheDeclaration primitives_declaration(
    "matmul_primitives", "oneDNN's primitives for matrix products",
    "rows and strides of the operands, accumulation, number of threads, format of the weight",
    "64 for each packed weight, and 64 for products without one", "the end of the packed weight");

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::desc rows(int64_t count, int64_t size, int64_t ld, Type type = Type::f32) {
  return memory::desc({count, size}, type, memory::dims{ld, 1});
}

memory::desc plain(const Matrix& b, int64_t n, int64_t k, Type type = Type::f32) {
  // With k = 1, a column of single elements is described as a row, which it also is: oneDNN
  // computes wrong results for it as a column.
  const bool is_row = !b.transposed || (k == 1 && b.ld == 1);
  const memory::dims strides = is_row ? memory::dims{std::max(b.ld, n), 1} : memory::dims{1, b.ld};
  return memory::desc({k, n}, type, strides);
}

memory::desc in_format(tag format, int64_t n, int64_t k, Type type = Type::f32) {
  return memory::desc({k, n}, type, format);
}

dnnl::primitive_attr attributes_of(bool accumulate) {
  dnnl::primitive_attr attributes;
  // A primitive may run on a thread other than the one that created it, so oneDNN must not manage
  // its scratchpad.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum();
    attributes.set_post_ops(sum);
  }
  return attributes;
}

// Describes the matmul with a packed operand `b`; the left operand has the same element type.
matmul::primitive_desc describe(const MatmulShape& shape, const memory::desc& b) {
  const int64_t k = b.get_dims()[0], n = b.get_dims()[1];
  return {cpu(), rows(shape.m, k, shape.lda, b.get_data_type()), b, rows(shape.m, n, shape.ldc),
          attributes_of(shape.accumulate)};
}

// Returns the result of make(), which calls oneDNN. Forks wait meanwhile: the call holds internal
// locks of the library, which would stay locked in a forked process.
template <typename Make>
auto made_by_library(const Make& make) {
  const ForkBlocker fork_blocker;
  return make();
}

bool has_avx512_matmul() { return dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core; }

bool is_for_blocks(const matmul::primitive_desc& desc) {
  return std::strncmp(desc.impl_info_str(), "brg", 3) == 0;
}

// The format for multiplications of `m` rows, and the largest k of one multiplication. With AVX-512
// oneDNN itself selects a blocked format. With AVX2 its fastest kernel reads one, too, but oneDNN
// does not select it; in the releases that Paddle ships, that kernel is wrong for k > 1024.
std::pair<memory::desc, int64_t> preferred(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kMaxPartDepth = 1024;
  const ForkBlocker fork_blocker;
  const MatmulShape shape{m, k, n, false};
  const auto wanted = describe(shape, in_format(tag::any, n, k));
  if (is_for_blocks(wanted)) return {wanted.weights_desc(), k};
  const int64_t part = std::min(k, kMaxPartDepth);
  const auto blocks = in_format(tag::BA16a16b, n, part);
  if (is_for_blocks(describe({m, part, n, false}, blocks))) return {blocks, part};
  return {in_format(tag::ba, n, k), k};
}

// Copies `b`, [k, n], into the memory layout `format`.
std::shared_ptr<Buffer> reordered(const Matrix& b, int64_t n, int64_t k,
                                  const memory::desc& format) {
  const auto result = std::make_shared<Buffer>(format.get_size() / sizeof(float));
  dnnl::stream stream(cpu());
  memory source(plain(b, n, k), cpu(), const_cast<float*>(b.data));
  memory target(format, cpu(), result->data());
  made_by_library([&] { return dnnl::reorder(source, target); }).execute(stream, source, target);
  stream.wait();
  return result;
}

using Primitive = std::pair<matmul, matmul::primitive_desc>;

// A cache of oneDNN primitives, since creating one takes longer than a small matmul.
class Primitives {
 public:
  Primitive find(const MatmulShape& shape, const memory::desc& b) const {
    const ForkBlocker fork_blocker;
    const Key key{{shape.m, shape.lda, shape.ldc, shape.accumulate, num_omp_threads()}, b};
    return made_.get_or_create(key, [&] {
      const auto desc = describe(shape, b);
      return Primitive(matmul(desc), desc);
    });
  }

 private:
  // The maximum number of cached primitives: inputs may have any length, and each length needs
  // primitives of its own.
  static constexpr size_t kMaxPrimitives = 64;
  // The shape, the number of threads, for which a primitive is created, and the right operand.
  using Key = std::pair<std::tuple<int64_t, int64_t, int64_t, bool, int>, memory::desc>;
  struct KeyHash {
    size_t operator()(const Key& key) const {
      const auto [m, lda, ldc, accumulate, threads] = key.first;
      size_t hash = 0;
      for (const int64_t number : {m, lda, ldc, int64_t{accumulate}, int64_t{threads}}) {
        hash = hash * 31 + static_cast<size_t>(number);
      }
      return hash;
    }
  };

  mutable LruCache<Key, Primitive, KeyHash> made_{kMaxPrimitives};
};

// Rows of the right operand of a matmul, from row `k` on; `owned` contains the rows if they are
// packed.
struct Part {
  int64_t k;
  memory b;
  std::shared_ptr<Buffer> owned;
};

// A matmul as a sum of several: one oneDNN primitive for each range of k.
class OnednnMatmul : public Matmul {
 public:
  OnednnMatmul() : stream_(cpu()) {}

  void add(const Part& part, const Primitive& primitive) {
    const auto& desc = primitive.second;
    const memory a(desc.src_desc(), cpu(), nullptr), c(desc.dst_desc(), cpu(), nullptr);
    const memory scratchpad(desc.scratchpad_desc(), cpu());
    calls_.push_back({primitive.first,
                      part.k,
                      a,
                      c,
                      {{DNNL_ARG_SRC, a},
                       {DNNL_ARG_WEIGHTS, part.b},
                       {DNNL_ARG_DST, c},
                       {DNNL_ARG_SCRATCHPAD, scratchpad}}});
  }

  void compute(const float* a, const uint16_t* /*rounded*/, float* c) override {
    compute_from(a, c);
  }

  // Computes the matmul; `Number` is the element type of `a`, that of the packed operand.
  template <typename Number>
  void compute_from(const Number* a, float* c) {
    for (auto& call : calls_) {
      call.a.set_data_handle(const_cast<Number*>(a + call.k));
      call.c.set_data_handle(c);
      call.primitive.execute(stream_, call.arguments);
    }
  }

 private:
  struct Call {
    matmul primitive;
    int64_t k;
    memory a, c;
    std::unordered_map<int, memory> arguments;
  };

  dnnl::stream stream_;
  std::vector<Call> calls_;
};

class OnednnMatrix : public PackedMatrix {
 public:
  explicit OnednnMatrix(std::vector<Part> parts) : parts_(std::move(parts)) {}

  std::unique_ptr<Matmul> make_matmul(const MatmulShape& shape) const override {
    return onednn_matmul(shape);
  }

  std::unique_ptr<OnednnMatmul> onednn_matmul(const MatmulShape& shape) const {
    auto product = std::make_unique<OnednnMatmul>();
    for (const auto& part : parts_) {
      MatmulShape partial = shape;
      partial.accumulate = shape.accumulate || part.k > 0;
      product->add(part, primitives_.find(partial, part.b.get_desc()));
    }
    return product;
  }

 private:
  std::vector<Part> parts_;
  Primitives primitives_;
};

// oneDNN compiles kernels of sgemm in the first calls that need them, and acquires a lock for it
// that is not fork-safe. Therefore all of them are compiled here: three groups of kernels,
// each compiled as a whole.
void compile_sgemm() {
  const ForkBlocker fork_blocker;
  // The matmuls below run on the calling thread only.
  const OmpThreads one(1);
  constexpr int64_t kSizes[][3] = {{1, 1, 1}, {16, 16, 1}, {8, 17, 200}};
  const std::vector<float> a(17 * 200), b(17 * 200);
  std::vector<float> c(17 * 17);
  for (const auto& [m, n, k] : kSizes) {
    for (const char transposed_b : {'N', 'T'}) {
      dnnl::sgemm('N', transposed_b, m, n, k, 1.0f, a.data(), k, b.data(),
                  transposed_b == 'T' ? k : n, 0.0f, c.data(), n);
    }
  }
}

// The oneDNN provider. The only object is created while the GIL is held, so that no fork sees a
// partially created one.
class OnednnProvider : public GemmProvider {
 public:
  OnednnProvider() { compile_sgemm(); }

  const char* name() const override { return "onednn"; }

  std::shared_ptr<const PackedMatrix> pack(const Matrix& b, int64_t m, int64_t n,
                                           int64_t k) const override {
    const auto [format, most] = preferred(m, n, k);
    std::vector<Part> parts;
    for (int64_t first = 0; first < k; first += most) {
      const int64_t count = std::min(most, k - first);
      const auto desc = count == most ? format : in_format(tag::BA16a16b, n, count);
      const float* data = b.data + first * (b.transposed ? 1 : b.ld);
      const auto owned = reordered({data, b.ld, b.transposed}, n, count, desc);
      parts.push_back({first, memory(desc, cpu(), owned->data()), owned});
    }
    return std::make_shared<OnednnMatrix>(std::move(parts));
  }

  std::shared_ptr<const PackedMatrix> refer(const Matrix& b, int64_t n, int64_t k) const override {
    const memory whole(plain(b, n, k), cpu(), const_cast<float*>(b.data));
    return std::make_shared<OnednnMatrix>(std::vector<Part>{{0, whole, nullptr}});
  }

  void gemm(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k, float* c,
            int64_t ldc, bool accumulate) const override {
    // For few rows, sgemm does not use all of its threads: uses oneDNN's matmul primitive instead.
    if (!a.transposed && m >= kMinRows && m <= kMaxRows && has_avx512_matmul()) {
      OnednnMatmul product;
      const memory whole(plain(b, n, k), cpu(), const_cast<float*>(b.data));
      product.add({0, whole, nullptr},
                  primitives_.find({m, a.ld, ldc, accumulate}, whole.get_desc()));
      return product.compute_from(a.data, c);
    }
    const auto status =
        dnnl::sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data, a.ld,
                    b.data, b.ld, accumulate ? 1.0f : 0.0f, c, ldc);
    if (status != dnnl::status::success) throw NgraphError("oneDNN refused a matrix product");
  }

 private:
  static constexpr int64_t kMinRows = 16, kMaxRows = 512;
  Primitives primitives_;
};

// -- operands in bfloat16 -------------------------------------------------------------------------

// An operand in bfloat16, which the caller has rounded already, or which this object rounds.
class RoundedOperand {
 public:
  RoundedOperand(const Matrix& matrix, int64_t rows, int64_t columns)
      : is_given_(matrix.rounded != nullptr),
        own_(is_given_ ? 0 : rows, columns),
        ld_(is_given_ ? matrix.ld : own_.ld()),
        data_(is_given_ ? matrix.rounded : own_.of(matrix.data, matrix.ld)) {}

  int64_t ld() const { return ld_; }
  const uint16_t* data() const { return data_; }

 private:
  bool is_given_;
  Rounded own_;
  int64_t ld_;
  const uint16_t* data_;
};

class Bfloat16Matmul : public Matmul {
 public:
  Bfloat16Matmul(const OnednnMatrix& matrix, const MatmulShape& shape, int64_t k)
      : matrix_(matrix), shape_(shape), own_(shape.m, k) {}

  void compute(const float* a, const uint16_t* rounded, float* c) override {
    if (rounded != nullptr) return with(of_given_, shape_.lda).compute_from(rounded, c);
    with(of_own_, own_.ld()).compute_from(own_.of(a, shape_.lda), c);
  }

 private:
  // Returns the matmul in `product`, which is created on first use: most objects get either only
  // rounded or only float32 operands.
  OnednnMatmul& with(std::unique_ptr<OnednnMatmul>& product, int64_t lda) const {
    if (product == nullptr) {
      product = matrix_.onednn_matmul({shape_.m, lda, shape_.ldc, shape_.accumulate});
    }
    return *product;
  }

  const OnednnMatrix& matrix_;
  MatmulShape shape_;
  Rounded own_;
  std::unique_ptr<OnednnMatmul> of_own_, of_given_;
};

class Bfloat16Matrix : public PackedMatrix {
 public:
  Bfloat16Matrix(const Matrix& b, int64_t m, int64_t n, int64_t k)
      : k_(k), matrix_(parts(b, m, n, k)) {}

  std::unique_ptr<Matmul> make_matmul(const MatmulShape& shape) const override {
    return std::make_unique<Bfloat16Matmul>(matrix_, shape, k_);
  }

 private:
  static std::vector<Part> parts(const Matrix& b, int64_t m, int64_t n, int64_t k) {
    const auto format = made_by_library([&] {
      return describe({m, k, n, false}, in_format(tag::any, n, k, Type::bf16)).weights_desc();
    });
    const auto owned = reordered(b, n, k, format);
    return {{0, memory(format, cpu(), owned->data()), owned}};
  }

  int64_t k_;
  OnednnMatrix matrix_;
};

// Rounds both operands to bfloat16, and sums in float32. Small multiplications and those of one
// row, which are bound by memory or by calls, remain in float32.
class Bfloat16Provider : public GemmProvider {
 public:
  Bfloat16Provider() { onednn_provider(); }

  const char* name() const override { return "onednn bf16"; }

  bool rounds() const override { return true; }

  int64_t max_few_rows() const override { return 1; }

  std::shared_ptr<const PackedMatrix> pack(const Matrix& b, int64_t m, int64_t n,
                                           int64_t k) const override {
    if (std::min(n, k) < kMinSize) return onednn_provider().pack(b, m, n, k);
    return std::make_shared<Bfloat16Matrix>(b, m, n, k);
  }

  std::shared_ptr<const PackedMatrix> refer(const Matrix& b, int64_t n, int64_t k) const override {
    return onednn_provider().refer(b, n, k);
  }

  void gemm(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k, float* c,
            int64_t ldc, bool accumulate) const override {
    if (m == 1 || std::min(n, k) < kMinSize) {
      return onednn_provider().gemm(a, b, m, n, k, c, ldc, accumulate);
    }
    const RoundedOperand rounded_a(a, a.transposed ? k : m, a.transposed ? m : k);
    const RoundedOperand rounded_b(b, b.transposed ? n : k, b.transposed ? k : n);
    const auto a_desc = a.transposed
                            ? memory::desc({m, k}, Type::bf16, memory::dims{1, rounded_a.ld()})
                            : rows(m, k, rounded_a.ld(), Type::bf16);
    const auto b_desc = plain({nullptr, rounded_b.ld(), b.transposed}, n, k, Type::bf16);
    const auto [product, desc] = made_by_library([&] {
      const matmul::primitive_desc wanted(cpu(), a_desc, b_desc, rows(m, n, ldc),
                                          attributes_of(accumulate));
      return Primitive(matmul(wanted), wanted);
    });
    dnnl::stream stream(cpu());
    const auto view = [](const memory::desc& of, const void* data) {
      return memory(of, cpu(), const_cast<void*>(data));
    };
    product.execute(stream, {{DNNL_ARG_SRC, view(a_desc, rounded_a.data())},
                             {DNNL_ARG_WEIGHTS, view(b_desc, rounded_b.data())},
                             {DNNL_ARG_DST, view(desc.dst_desc(), c)},
                             {DNNL_ARG_SCRATCHPAD, memory(desc.scratchpad_desc(), cpu())}});
  }

 private:
  // The smallest dimension of matmuls that are rounded to bfloat16, equal to that in
  // mixed_precision.py.
  static constexpr int64_t kMinSize = 16;
};

}  // namespace

const GemmProvider& onednn_provider() {
  static const OnednnProvider provider;
  return provider;
}

const GemmProvider* bfloat16_provider() {
  constexpr auto kWanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  static const Bfloat16Provider provider;
  static const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (isa & kWanted) == kWanted ? &provider : nullptr;
}

}  // namespace paddle_ngraph::mkl_packed
