// The modes of this thread in which Paddle calls operators of dynamic mode.
#pragma once

namespace paddle_ngraph {

// Whether operators have gradients.
bool has_gradients();
void set_gradients(bool on);

// Whether operators compute in a lower precision (`auto_cast`).
bool has_mixed_precision();

}  // namespace paddle_ngraph
