#pragma once

#include <cstddef>
#include <vector>

#include "pipetrain/model/stage.h"

namespace pipetrain {

// Rows of activation_layout() and gradient_layout(), in their order.
namespace activation_row {
enum { block_input, qkv, attended, middle, fc, log_sum_exp, hidden_gradient };
}
namespace gradient_row {
enum { block_output, middle, fc, qkv_again, attended_again, middle_again, fc_again };
}

// Where the tensors of a slot lie: row by row, the tensors of a row one after another.
class SlotLayout {
 public:
  explicit SlotLayout(const std::vector<LayoutRow>& rows);

  size_t bytes() const { return bytes_; }
  bool holds(int row) const { return rows_.at(static_cast<size_t>(row)).count > 0; }
  // Byte offset of tensor `index` of a row; throws InternalError if the slot does not hold it.
  size_t offset(int row, int index) const;

 private:
  struct Row {
    size_t start = 0;
    size_t stride = 0;
    int count = 0;
  };
  std::vector<Row> rows_;
  size_t bytes_ = 0;
};

}  // namespace pipetrain
