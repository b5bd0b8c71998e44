// Parts of a tensor in blocks of channels, [N, C / block, H, W, block]: samples, blocks and rows.
#pragma once

#include <cstdint>
#include <cstring>

#include <openvino/core/shape.hpp>

#include "core/ov/split.h"

namespace paddle_ngraph {

struct Box {
  Range samples, blocks, rows;
};

// How such a tensor lies in memory.
class BoxedTensor {
 public:
  // `shape` is [N, C, H, W].
  BoxedTensor(const ov::Shape& shape, int64_t block, size_t element_size)
      : samples_(static_cast<int64_t>(shape[0])),
        blocks_(static_cast<int64_t>(shape[1]) / block),
        rows_(static_cast<int64_t>(shape[2])),
        row_size_(shape[3] * static_cast<size_t>(block) * element_size) {}

  Box whole() const { return {{0, samples_}, {0, blocks_}, {0, rows_}}; }

  // Whether the elements of a box lie side by side, in order.
  bool is_dense(const Box& box) const {
    const bool one_sample = box.samples.size() == 1, one_block = box.blocks.size() == 1;
    const bool all_rows = box.rows.size() == rows_, all_blocks = box.blocks.size() == blocks_;
    return (all_rows || (one_block && one_sample)) && (all_blocks || one_sample);
  }

  size_t size(const Box& box) const {
    return static_cast<size_t>(box.samples.size() * box.blocks.size() * box.rows.size()) *
           row_size_;
  }

  // Where a row begins, in bytes.
  size_t place(int64_t sample, int64_t block, int64_t row) const {
    return static_cast<size_t>((sample * blocks_ + block) * rows_ + row) * row_size_;
  }
  size_t place(const Box& box) const {
    return place(box.samples.begin, box.blocks.begin, box.rows.begin);
  }

  // Copies a box of the tensor to memory where it lies together, and back.
  void gather(const char* tensor, const Box& box, char* together) const {
    each_run(box, [&](size_t place, size_t size) {
      std::memcpy(together, tensor + place, size);
      together += size;
    });
  }
  void scatter(const char* together, const Box& box, char* tensor) const {
    each_run(box, [&](size_t place, size_t size) {
      std::memcpy(tensor + place, together, size);
      together += size;
    });
  }

 private:
  template <typename Body>
  void each_run(const Box& box, const Body& body) const {
    const size_t size = static_cast<size_t>(box.rows.size()) * row_size_;
    for (int64_t sample = box.samples.begin; sample < box.samples.end; ++sample) {
      for (int64_t block = box.blocks.begin; block < box.blocks.end; ++block) {
        body(place(sample, block, box.rows.begin), size);
      }
    }
  }

  int64_t samples_, blocks_, rows_;
  size_t row_size_;
};

}  // namespace paddle_ngraph
