# MARBLE_WITH_CUDA: whether the CUDA backend is built. Kernels name their own targets, file by file.
set(MARBLE_WITH_CUDA FALSE)
if(NOT MARBLE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(MARBLE_WITH_CUDA TRUE)
  elseif(MARBLE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MARBLE_CUDA is ON, but no nvcc was found (set CMAKE_CUDA_COMPILER)")
  endif()
endif()
if(MARBLE_WITH_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  # CMake 3.25 does not know that nvcc has C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  find_package(CUDAToolkit REQUIRED)
endif()
message(STATUS "CUDA backend: ${MARBLE_WITH_CUDA}")

# For marble_device_code: any GPU from compute capability 8.0 on.
set(MARBLE_ANY_GPU
  "-gencode=arch=compute_80,code=sm_80;-gencode=arch=compute_90,code=sm_90;-gencode=arch=compute_90,code=compute_90")

# marble_device_code(<name> <codes> <sources...>): device code of the library, in an object library for each target. The
# launcher keeps what ptxas says of each file, which a test reads: a spill or a serialised wgmma is a failure.
set(MARBLE_PTXAS_LOGS ${PROJECT_BINARY_DIR}/ptxas)
function(marble_device_code name codes)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE ${codes}
    --expt-relaxed-constexpr --expt-extended-lambda --use_fast_math -lineinfo -Xptxas=-v)
  # Asserts are calls, and calls serialise wgmma, so device code is compiled without them in every configuration.
  target_compile_definitions(${name} PRIVATE NDEBUG)
  # Unquoted, for there may be no launcher to go on to.
  set(launcher python3 ${PROJECT_SOURCE_DIR}/scripts/check_ptxas.py record ${MARBLE_PTXAS_LOGS}
    ${CMAKE_CUDA_COMPILER_LAUNCHER})
  set_target_properties(${name} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
  target_sources(marble PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()
