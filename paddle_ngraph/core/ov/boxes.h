// Boxes: regions of a tensor along samples, blocks of channels and rows.
#pragma once

#include <cstdint>
#include <cstring>

#include <openvino/core/shape.hpp>

#include "core/ov/work_division.h"

namespace paddle_ngraph {

struct Box {
  Range samples, blocks, rows;
};

// Memory layout of a tensor: in blocks of channels, [N, C / block, H, W, block], or with channels
// last, [N, H, W, C].
class BoxedTensor {
 public:
  // Describes a tensor whose `shape` without blocks is [N, C, H, W].
  BoxedTensor(const ov::Shape& shape, int64_t block, size_t element_size, bool channels_last)
      : samples_(static_cast<int64_t>(shape[0])),
        blocks_(static_cast<int64_t>(shape[1]) / block),
        rows_(static_cast<int64_t>(shape[2])),
        pixels_(static_cast<int64_t>(shape[3])),
        pixel_size_(static_cast<size_t>(block) * element_size),
        row_size_(shape[3] * pixel_size_),
        channels_last_(channels_last) {}

  Box whole() const { return {{0, samples_}, {0, blocks_}, {0, rows_}}; }

  // Whether the elements of a box are contiguous in the tensor, and in the box's order.
  bool is_dense(const Box& box) const {
    const bool one_sample = box.samples.size() == 1, one_block = box.blocks.size() == 1;
    const bool all_rows = box.rows.size() == rows_, all_blocks = box.blocks.size() == blocks_;
    if (channels_last_) return all_blocks && (all_rows || one_sample);
    return (all_rows || (one_block && one_sample)) && (all_blocks || one_sample);
  }

  size_t size(const Box& box) const {
    return static_cast<size_t>(box.samples.size() * box.blocks.size() * box.rows.size()) *
           row_size_;
  }

  // Offset of the start of a row, in bytes.
  size_t byte_offset(int64_t sample, int64_t block, int64_t row) const {
    if (channels_last_) {
      return static_cast<size_t>((sample * rows_ + row) * blocks_) * row_size_ +
             static_cast<size_t>(block) * pixel_size_;
    }
    return static_cast<size_t>((sample * blocks_ + block) * rows_ + row) * row_size_;
  }
  size_t byte_offset(const Box& box) const {
    return byte_offset(box.samples.begin, box.blocks.begin, box.rows.begin);
  }

  // Copies a box of the tensor to contiguous memory, and back.
  void gather(const char* tensor, const Box& box, char* together) const {
    each_run(box, [&](size_t offset, size_t size) {
      std::memcpy(together, tensor + offset, size);
      together += size;
    });
  }
  void scatter(const char* together, const Box& box, char* tensor) const {
    each_run(box, [&](size_t offset, size_t size) {
      std::memcpy(tensor + offset, together, size);
      together += size;
    });
  }

  // Copies a box with channels last to this tensor, which has blocks of channels.
  void scatter_channels_last(const char* together, const Box& box, char* tensor) const {
    const size_t blocks_size = static_cast<size_t>(box.blocks.size()) * pixel_size_;
    for (int64_t sample = box.samples.begin; sample < box.samples.end; ++sample) {
      for (int64_t row = box.rows.begin; row < box.rows.end; ++row) {
        for (int64_t block = 0; block < box.blocks.size(); ++block) {
          const char* from = together + static_cast<size_t>(block) * pixel_size_;
          char* to = tensor + byte_offset(sample, box.blocks.begin + block, row);
          copy_pixels(from, blocks_size, to);
        }
        together += static_cast<size_t>(pixels_) * blocks_size;
      }
    }
  }

 private:
  // Copies a row of one block, whose source pixels are `step` bytes apart.
  void copy_pixels(const char* from, size_t step, char* to) const {
    // The size is a constant in each call, so that the copies compile to vector moves.
    switch (pixel_size_) {
      case 64:
        return copy_pixels<64>(from, step, to);
      case 32:
        return copy_pixels<32>(from, step, to);
      default:
        return copy_pixels<0>(from, step, to);
    }
  }
  template <size_t kSize>
  void copy_pixels(const char* from, size_t step, char* to) const {
    const size_t size = kSize > 0 ? kSize : pixel_size_;
    for (int64_t i = 0; i < pixels_; ++i) {
      std::memcpy(to, from, size);
      from += step;
      to += size;
    }
  }

  template <typename Body>
  void each_run(const Box& box, const Body& body) const {
    if (channels_last_) return each_pixel(box, body);
    const size_t size = static_cast<size_t>(box.rows.size()) * row_size_;
    for (int64_t sample = box.samples.begin; sample < box.samples.end; ++sample) {
      for (int64_t block = box.blocks.begin; block < box.blocks.end; ++block) {
        body(byte_offset(sample, block, box.rows.begin), size);
      }
    }
  }

  template <typename Body>
  void each_pixel(const Box& box, const Body& body) const {
    const size_t size = static_cast<size_t>(box.blocks.size()) * pixel_size_;
    for (int64_t sample = box.samples.begin; sample < box.samples.end; ++sample) {
      for (int64_t row = box.rows.begin; row < box.rows.end; ++row) {
        const size_t first = byte_offset(sample, box.blocks.begin, row);
        for (int64_t i = 0; i < pixels_; ++i) {
          body(first + static_cast<size_t>(i * blocks_) * pixel_size_, size);
        }
      }
    }
  }

  int64_t samples_, blocks_, rows_, pixels_;
  size_t pixel_size_, row_size_;
  bool channels_last_;
};

}  // namespace paddle_ngraph
