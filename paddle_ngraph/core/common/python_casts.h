// pybind11's casts of plain types. Not pybind11.h, which compiles 80 KB of code into every source
// that includes it: the code reachable from the virtual table of error_already_set.
//
// Casts of containers come from <pybind11/stl.h>. The casts are declared here, since pybind11 would
// otherwise treat containers as registered classes.
#pragma once

#include <pybind11/cast.h>

#include <array>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

namespace paddle {
class Tensor;
}

namespace pybind11::detail {

template <typename T, size_t kSize>
struct type_caster<std::array<T, kSize>>;
template <typename T, typename A>
struct type_caster<std::deque<T, A>>;
template <typename T, typename A>
struct type_caster<std::list<T, A>>;
template <typename K, typename T, typename C, typename A>
struct type_caster<std::map<K, T, C, A>>;
template <typename T>
struct type_caster<std::optional<T>>;
template <typename T, typename C, typename A>
struct type_caster<std::set<T, C, A>>;
template <typename K, typename T, typename H, typename E, typename A>
struct type_caster<std::unordered_map<K, T, H, E, A>>;
template <typename T, typename H, typename E, typename A>
struct type_caster<std::unordered_set<T, H, E, A>>;
template <typename... T>
struct type_caster<std::variant<T...>>;
template <typename T, typename A>
struct type_caster<std::vector<T, A>>;
template <>
struct type_caster<paddle::Tensor>;  // caster of Paddle's paddle/utils/pybind.h

}  // namespace pybind11::detail
