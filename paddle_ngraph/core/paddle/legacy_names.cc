#include "core/paddle/legacy_names.h"

namespace paddle::translator {

// Only the members that are called here, with the symbols that libpaddle exports: the header in
// Paddle's wheel includes one of glog, which the wheel lacks.
class OpNameNormalizer {
 public:
  static OpNameNormalizer& instance();
  std::string GetLegacyAttrName(const std::string& op_type, const std::string& arg_name);
};

}  // namespace paddle::translator

namespace paddle_ngraph {

std::string legacy_attribute_name(const std::string& type, const std::string& name) {
  return paddle::translator::OpNameNormalizer::instance().GetLegacyAttrName(type, name);
}

}  // namespace paddle_ngraph
