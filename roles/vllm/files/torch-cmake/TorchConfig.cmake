# What vLLM's CPU extension needs of torch, where torch is a CUDA build (PyPI's): torch's own package file demands a
# CUDA toolkit there. Headers and the CPU's libraries are the same. INGOT_TORCH_ROOT is the directory of the package.
if(NOT IS_DIRECTORY "${INGOT_TORCH_ROOT}/include/ATen")
  message(FATAL_ERROR "INGOT_TORCH_ROOT=${INGOT_TORCH_ROOT} is not torch's package: it has no include/ATen")
endif()
set(TORCH_INSTALL_PREFIX "${INGOT_TORCH_ROOT}")
set(TORCH_INCLUDE_DIRS "${INGOT_TORCH_ROOT}/include" "${INGOT_TORCH_ROOT}/include/torch/csrc/api/include")
set(TORCH_LIBRARIES torch)
set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")
if(NOT TARGET torch)
  add_library(torch INTERFACE IMPORTED)
  target_include_directories(torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  target_compile_definitions(torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  target_link_libraries(torch INTERFACE
    "${INGOT_TORCH_ROOT}/lib/libtorch.so" "${INGOT_TORCH_ROOT}/lib/libtorch_cpu.so" "${INGOT_TORCH_ROOT}/lib/libc10.so")
endif()
set(Torch_FOUND TRUE)
