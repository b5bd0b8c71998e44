#include "core/common/random_bytes.h"

#include <cerrno>
#include <cstring>

#include <sys/random.h>

#include "core/common/error.h"

namespace paddle_ngraph {

void fill_with_random_bytes(void* data, size_t num_bytes) {
  auto* at = static_cast<char*>(data);
  while (num_bytes > 0) {
    const ssize_t count = getrandom(at, num_bytes, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw NgraphError(concat("no random bytes: ", std::strerror(errno)));
    at += count;
    num_bytes -= static_cast<size_t>(count);
  }
}

}  // namespace paddle_ngraph
