/* A generated program as a library: open a model directory, run it, close it.
 *
 * Every function may be called from several threads at once, also for one model. Runs of a model
 * that changes its variables, or generates random numbers, are serialized. On failure, functions
 * return NULL or a nonzero status; ngraph_model_error() then returns the reason, in one sentence.
 */
#ifndef NGRAPH_MODEL_H
#define NGRAPH_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NGRAPH_MODEL_API __attribute__((visibility("default")))
#define NGRAPH_MODEL_MAX_RANK 9

typedef struct ngraph_model ngraph_model;

/* An array in C order. */
typedef struct {
  const char* dtype; /* "float32", "int64", ...: Paddle's name */
  size_t rank;
  size_t shape[NGRAPH_MODEL_MAX_RANK];
  void* data;
} ngraph_array;

/* An input or a result, as declared by the program; -1 for dynamic dimensions. */
typedef struct {
  const char* name;
  const char* dtype;
  size_t rank;
  int64_t shape[NGRAPH_MODEL_MAX_RANK];
} ngraph_declared;

typedef struct {
  int threads; /* per run; 0: a thread for each core; 1: the calling thread */
  int streams; /* concurrent runs if a run has several threads; 0 means 1 */
} ngraph_options;

/* Opens a model directory. `options` may be NULL. */
NGRAPH_MODEL_API ngraph_model* ngraph_model_open(const char* folder, const ngraph_options* options);

NGRAPH_MODEL_API size_t ngraph_model_num_inputs(const ngraph_model* model);
NGRAPH_MODEL_API size_t ngraph_model_num_results(const ngraph_model* model);

/* The inputs and results. The names are valid until the model is closed. */
NGRAPH_MODEL_API ngraph_declared ngraph_model_input(const ngraph_model* model, size_t number);
NGRAPH_MODEL_API ngraph_declared ngraph_model_result(const ngraph_model* model, size_t number);

/* Runs the program on one array for each input, which are only read, and fills `results` with one
 * array for each result, to be released by ngraph_array_release. Returns 0, or 1 on failure, which
 * leaves `results` unchanged. */
NGRAPH_MODEL_API int ngraph_model_run(ngraph_model* model, const ngraph_array* inputs,
                                      ngraph_array* results);

/* Frees a result of a run. */
NGRAPH_MODEL_API void ngraph_array_release(ngraph_array* array);

/* Closes the model, which must have no run in progress. */
NGRAPH_MODEL_API void ngraph_model_close(ngraph_model* model);

/* The error of the last failed call in this thread; valid until the next call. */
NGRAPH_MODEL_API const char* ngraph_model_error(void);

#ifdef __cplusplus
}
#endif

#endif
