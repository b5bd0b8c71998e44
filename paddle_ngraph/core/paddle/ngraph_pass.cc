// The PIR pass `ngraph_pass`: a wrapper of partitioning/program_pass.py, registered so that
// pir.PassManager and Paddle Inference find the pass by name.
#include <pybind11/pybind11.h>

#include "paddle/common/enforce.h"
#include "paddle/phi/common/place.h"
#include "paddle/pir/include/core/builtin_op.h"
#include "paddle/pir/include/core/program.h"
#include "paddle/pir/include/pass/pass.h"
#include "paddle/pir/include/pass/pass_registry.h"

#include "core/common/error.h"
#include "core/common/python_callbacks.h"
#include "core/paddle/interruption.h"
#include "core/paddle/scopes.h"

namespace py = pybind11;

class NgraphPass : public pir::Pass {
 public:
  NgraphPass() : pir::Pass("ngraph_pass", /*opt_level=*/0) {}

  bool CanApplyOn(pir::Operation* op) const override {
    return op->isa<pir::ModuleOp>() && op->num_regions() > 0;
  }

  void Run(pir::Operation* op) override {
    using namespace paddle_ngraph;  // NOLINT
    if (Has(kPlaceAttr) && Get<phi::Place>(kPlaceAttr).GetType() != phi::AllocationType::CPU)
      return;
    // The scope of the program's parameters, if a predictor runs the pass; else null.
    auto* scope = Has(kParamScopeAttr) ? &Get<paddle::framework::Scope>(kParamScopeAttr) : nullptr;
    py::gil_scoped_acquire gil;
    std::string failure;
    try {
      callback(PythonCallback::kApplyPass)(
          py::cast(&op->dyn_cast<pir::ModuleOp>().block(), py::return_value_policy::reference),
          py::cast(scope, py::return_value_policy::reference));
    } catch (const py::error_already_set& error) {
      if (const auto interruption = PythonInterrupt::of(error))
        throw_as_paddle_error(*interruption);
      failure = error.what();
    }
    if (!failure.empty()) PADDLE_THROW(common::errors::External("ngraph_pass: %s", failure));
  }
};

REGISTER_IR_PASS(ngraph_pass, NgraphPass);
