// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/transport.hpp"

#include "bindings.hpp"
#include "callback_transport.hpp"

#include "marble/backend.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <string>

namespace nb = nanobind;

namespace marble::python {

namespace {

/// Messages name the backend's memory from here on, which the transport reads and writes through it.
void use_memory_of(Transport& transport, Backend& backend) {
  transport.set_memory_access({.read = [&](void* target, const void* source,
                                           std::int64_t bytes) { backend.copy_to_host(target, source, bytes); },
                               .write = [&](void* target, const void* source,
                                            std::int64_t bytes) { backend.copy_from_host(target, source, bytes); }});
}

/// Collective over the ranks that are given the same address and port, rank 0's.
std::unique_ptr<Transport> make_nccl(std::int32_t rank, std::int32_t num_ranks, std::int32_t device,
                                     const std::string& address, std::int32_t port, std::uintptr_t stream,
                                     double time_limit) {
  const NcclOptions options{.rank = rank,
                            .num_ranks = num_ranks,
                            .device = device,
                            .address = address,
                            .port = port,
                            .stream = reinterpret_cast<void*>(stream),
                            .time_limit = std::chrono::milliseconds(static_cast<std::int64_t>(1000.0 * time_limit))};
  const nb::gil_scoped_release released;
  return make_nccl_transport(options);
}

}  // namespace

void bind_transport(nb::module_& module) {
  nb::class_<Transport>(module, "Transport")
      .def_prop_ro("name", [](const Transport& transport) { return std::string(transport.name()); })
      .def_prop_ro("rank", &Transport::rank)
      .def_prop_ro("num_ranks", &Transport::num_ranks)
      .def_prop_ro("bytes_received", &Transport::bytes_received)
      .def("describe", &Transport::describe)
      .def("check", &Transport::check)
      .def(
          "fail", [](Transport& transport, const std::string& reason) { transport.fail(reason); }, nb::arg("reason"))
      .def("use_memory_of", &use_memory_of, nb::arg("backend"), nb::keep_alive<1, 2>());
  module.def("callback_transport", &make_callback_transport, nb::arg("name"), nb::arg("rank"), nb::arg("num_ranks"),
             nb::arg("peers").none());
  module.def("nccl_available", &nccl_available);
  module.def("nccl_transport", &make_nccl, nb::arg("rank"), nb::arg("num_ranks"), nb::arg("device"), nb::arg("address"),
             nb::arg("port"), nb::arg("stream"), nb::arg("time_limit"));
}

}  // namespace marble::python
