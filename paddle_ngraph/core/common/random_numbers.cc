#include "core/common/random_numbers.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <utility>

#include "core/common/vectorized.h"

namespace paddle_ngraph {

namespace {

// std::mt19937_64, with the parameters of the C++ standard, computed in blocks: `n` words of state
// give `n` random numbers and the `n` words of the next block.
using Stream = std::mt19937_64;
constexpr size_t kBlock = Stream::state_size;
constexpr size_t kShift = Stream::shift_size;
constexpr uint64_t kLower = (uint64_t{1} << Stream::mask_bits) - 1;
constexpr uint64_t kMatrix = Stream::xor_mask;

static_assert(Stream::tempering_u == 29 && Stream::tempering_s == 17 && Stream::tempering_t == 37 &&
                  Stream::tempering_l == 43,
              "untemper is written for these");

// Number of random numbers from which on they are computed in blocks. For fewer, copying the state
// of the stream costs more than it saves.
constexpr size_t kMinBlockwiseSamples = 4 * kBlock;

using Block = std::array<uint64_t, kBlock>;

inline uint64_t twist(uint64_t upper, uint64_t lower) {
  const uint64_t word = (upper & ~kLower) | (lower & kLower);
  return (word >> 1) ^ ((0 - (word & 1)) & kMatrix);
}

inline uint64_t temper(uint64_t word) {
  word ^= (word >> Stream::tempering_u) & Stream::tempering_d;
  word ^= (word << Stream::tempering_s) & Stream::tempering_b;
  word ^= (word << Stream::tempering_t) & Stream::tempering_c;
  return word ^ (word >> Stream::tempering_l);
}

// Inverse of `temper`, the last step of MT19937. Each shift is undone from the bits that it left
// unchanged.
uint64_t untemper(uint64_t number) {
  number ^= number >> Stream::tempering_l;
  number ^= (number << Stream::tempering_t) & Stream::tempering_c;
  uint64_t word = number;
  for (int i = 0; i < 3; ++i) word = number ^ ((word << Stream::tempering_s) & Stream::tempering_b);
  number = word;
  for (int i = 0; i < 2; ++i) word = number ^ ((word >> Stream::tempering_u) & Stream::tempering_d);
  return word;
}

NGRAPH_VECTORIZED
void next_block(const uint64_t* __restrict__ state, uint64_t* __restrict__ next) {
  for (size_t i = 0; i < kBlock - kShift; ++i) {
    next[i] = state[i + kShift] ^ twist(state[i], state[i + 1]);
  }
  const uint64_t* __restrict__ first = next;
  uint64_t* __restrict__ rest = next + (kBlock - kShift);
  for (size_t i = 0; i < kShift - 1; ++i) {
    rest[i] = first[i] ^ twist(state[kBlock - kShift + i], state[kBlock - kShift + i + 1]);
  }
  next[kBlock - 1] = next[kShift - 1] ^ twist(state[kBlock - 1], next[0]);
}

NGRAPH_VECTORIZED
void mask_from_words(const uint64_t* __restrict__ words, size_t count, uint64_t threshold,
                     uint8_t* __restrict__ output) {
  for (size_t i = 0; i < count; ++i) output[i] = temper(words[i]) >= threshold ? 1 : 0;
}

// Seed sequence that gives a stream these words as its state: the next random numbers follow them.
struct Words {
  using result_type = uint32_t;

  template <typename Iterator>
  void generate(Iterator begin, Iterator end) const {
    for (size_t i = 0; begin != end; ++begin, ++i) {
      *begin = static_cast<uint32_t>(words[i / 2] >> (i % 2 == 0 ? 0 : 32));
    }
  }

  Block words;
};

// Least 64-bit random number that std::uniform_real_distribution<float>(0, 1) maps to a value >=
// `probability`.
uint64_t mask_threshold(float probability) {
  uint64_t low = 0, high = ~uint64_t{0};
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (static_cast<float>(middle) * 0x1p-64f < probability) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void fill_mask(size_t count, float probability, Stream* stream, uint8_t* output) {
  const uint64_t threshold = mask_threshold(probability);
  if (count < kMinBlockwiseSamples) {
    for (size_t i = 0; i < count; ++i) output[i] = (*stream)() >= threshold ? 1 : 0;
    return;
  }
  Block blocks[2];
  uint64_t* state = blocks[0].data();
  uint64_t* next = blocks[1].data();
  for (size_t i = 0; i < kBlock; ++i) state[i] = untemper((*stream)());
  mask_from_words(state, kBlock, threshold, output);
  size_t done = kBlock;
  for (; count - done >= kBlock; done += kBlock) {
    next_block(state, next);
    mask_from_words(next, kBlock, threshold, output + done);
    std::swap(state, next);
  }
  const size_t rest = count - done;
  next_block(state, next);
  mask_from_words(next, rest, threshold, output + done);
  // The kBlock most recently generated words: the state from which the stream continues.
  Words last;
  std::copy(next, next + rest, std::copy(state + rest, state + kBlock, last.words.begin()));
  stream->seed(last);
}

template <typename Values>
void fill(size_t count, Values values, Stream* stream, float* output) {
  for (size_t i = 0; i < count; ++i) output[i] = values(*stream);
}

// Computes the samples and discards them: the number of random numbers that a sample consumes may
// depend on their values, so the stream cannot be advanced by a known count.
template <typename Values>
void skip(size_t count, Values values, Stream* stream) {
  for (size_t i = 0; i < count; ++i) values(*stream);
}

void sample_from(Stream* stream, const RandomSample& sample, void* output) {
  const size_t count = sample.count();
  auto* numbers = static_cast<float*>(output);
  switch (sample.distribution) {
    case Distribution::dropout_mask:
      if (output == nullptr) return stream->discard(count);
      return fill_mask(count, sample.a, stream, static_cast<uint8_t*>(output));
    case Distribution::uniform:
      if (output == nullptr) return stream->discard(count);
      return fill(count, std::uniform_real_distribution<float>(sample.a, sample.b), stream,
                  numbers);
    case Distribution::normal:
      if (output == nullptr) return skip(count, std::normal_distribution<float>(), stream);
      return fill(count, std::normal_distribution<float>(sample.a, sample.b), stream, numbers);
  }
}

}  // namespace

size_t RandomSample::count() const {
  return std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
}

ResultType RandomSample::type() const {
  return {distribution == Distribution::dropout_mask ? ElementType::u8 : ElementType::f32, shape};
}

void sample(const RandomSample& sample, std::mt19937_64* stream, void* output) {
  if (sample.seed == 0) return sample_from(stream, sample, output);
  if (output == nullptr) return;
  Stream own(static_cast<uint64_t>(sample.seed));
  sample_from(&own, sample, output);
}

}  // namespace paddle_ngraph
