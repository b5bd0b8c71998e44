#include "core/paddle/flags.h"

#define NGRAPH_DEFINE_BOOL(name, value, meaning) PHI_DEFINE_EXPORTED_bool(name, value, meaning);
#define NGRAPH_DEFINE_INT32(name, value, meaning) PHI_DEFINE_EXPORTED_int32(name, value, meaning);
#define NGRAPH_DEFINE_STRING(name, value, meaning) PHI_DEFINE_EXPORTED_string(name, value, meaning);
NGRAPH_FLAGS(NGRAPH_DEFINE_BOOL, NGRAPH_DEFINE_INT32, NGRAPH_DEFINE_STRING)

namespace paddle_ngraph {

std::vector<FlagInfo> all_flags() {
#define NGRAPH_LIST(name, value, meaning) {#name, value, meaning},
#define NGRAPH_LIST_STRING(name, value, meaning) {#name, std::string(value), meaning},
  return {NGRAPH_FLAGS(NGRAPH_LIST, NGRAPH_LIST, NGRAPH_LIST_STRING)};
}

}  // namespace paddle_ngraph
