# Compiles the GPU kernels, where there is an nvcc, and embeds them in r2device. Nothing else of a CUDA toolkit is used:
# CMake's own support for CUDA would ask for more of it, and for a newer CMake.
#
#   R2CCL_CUDA        AUTO: where an nvcc is found; ON: it must be there; OFF
#   R2CCL_NVCC        the compiler, if it is not where it is looked for
#   R2CCL_CUDA_ARCHS  wanted architectures; those that nvcc does not know are left out. Newer GPUs compile the last
#                     one's PTX when they load it
set(R2CCL_CUDA "AUTO" CACHE STRING "AUTO | ON | OFF: kernels for GPUs")
set(R2CCL_CUDA_ARCHS "75;80;90;100" CACHE STRING "compute capabilities to compile for")

if(R2CCL_CUDA STREQUAL "OFF")
  return()
endif()

# Without kernels nothing else is kept from being built, unless they were asked for. A macro: it returns from here.
macro(r2ccl_do_without level)
  if(R2CCL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "R2CCL_CUDA=ON, and ${ARGN}")
  endif()
  message(${level} "r2ccl: no kernels for GPUs: ${ARGN}")
  return()
endmacro()

# Python's packages: nvidia/cu13 (CUDA 13 and later), nvidia/cuda_nvcc (CUDA 12).
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import sys; print(';'.join(f'{p}/nvidia/{d}' for p in sys.path if p for d in ('cu13', 'cuda_nvcc')))"
  OUTPUT_VARIABLE r2ccl_python_nvidia OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(DEFINED ENV{CUDACXX})
  set(R2CCL_NVCC $ENV{CUDACXX} CACHE FILEPATH "nvcc")
endif()
find_program(R2CCL_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda /opt/cuda ${r2ccl_python_nvidia} PATH_SUFFIXES bin)
if(NOT R2CCL_NVCC)
  r2ccl_do_without(STATUS "there is no nvcc: install a CUDA toolkit or nvidia-cuda-nvcc, or set R2CCL_NVCC")
endif()

execute_process(COMMAND ${R2CCL_NVCC} --list-gpu-arch OUTPUT_VARIABLE r2ccl_known RESULT_VARIABLE r2ccl_failed)
execute_process(COMMAND ${R2CCL_NVCC} --version OUTPUT_VARIABLE r2ccl_nvcc_version ERROR_QUIET)
if(r2ccl_failed)
  r2ccl_do_without(WARNING "${R2CCL_NVCC} does not run")
endif()
set(r2ccl_gencode)
foreach(arch IN LISTS R2CCL_CUDA_ARCHS)
  if(r2ccl_known MATCHES "compute_${arch}[^0-9]")
    list(APPEND r2ccl_gencode -gencode arch=compute_${arch},code=sm_${arch})
    set(r2ccl_newest ${arch})
  endif()
endforeach()
if(NOT r2ccl_gencode)
  message(FATAL_ERROR "${R2CCL_NVCC} knows none of R2CCL_CUDA_ARCHS=${R2CCL_CUDA_ARCHS}; it knows ${r2ccl_known}")
endif()
list(APPEND r2ccl_gencode -gencode arch=compute_${r2ccl_newest},code=compute_${r2ccl_newest})
# No contraction, as on the host: the same inputs give the same bits.
set(r2ccl_nvcc_options -std=c++20 -O3 -fmad=false --threads 0 -ccbin ${CMAKE_CXX_COMPILER})
# Smaller. Drivers of CUDA 12 need not know the format; those that load what CUDA 13 compiled do.
if(r2ccl_nvcc_version MATCHES "release ([0-9]+)" AND CMAKE_MATCH_1 GREATER_EQUAL 13)
  list(APPEND r2ccl_nvcc_options --compress-mode=size)
endif()

# An nvcc may not be able to work here, beside a newer compiler of C++ for instance.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/probe.cu "#include <cstdint>\n__global__ void probe(uint64_t* p) { *p = 1; }\n")
execute_process(
  COMMAND ${R2CCL_NVCC} ${r2ccl_nvcc_options} -gencode arch=compute_${r2ccl_newest},code=sm_${r2ccl_newest} -fatbin
    -o ${CMAKE_CURRENT_BINARY_DIR}/probe.fatbin ${CMAKE_CURRENT_BINARY_DIR}/probe.cu
  RESULT_VARIABLE r2ccl_failed OUTPUT_VARIABLE r2ccl_said ERROR_VARIABLE r2ccl_said)
if(r2ccl_failed)
  r2ccl_do_without(WARNING "${R2CCL_NVCC} cannot compile for ${R2CCL_CUDA_ARCHS}:\n${r2ccl_said}")
endif()

set(r2ccl_kernels ${CMAKE_CURRENT_SOURCE_DIR}/device/kernels)
file(GLOB r2ccl_kernel_sources CONFIGURE_DEPENDS ${r2ccl_kernels}/*.cuh ${r2ccl_kernels}/*.h ${r2ccl_kernels}/*.inl)
set(r2ccl_fatbin ${CMAKE_CURRENT_BINARY_DIR}/r2ccl.fatbin)
add_custom_command(OUTPUT ${r2ccl_fatbin}
  DEPENDS ${r2ccl_kernels}/all.cu ${r2ccl_kernel_sources} device/element_ops.h device/portable.h device/small_float.h
  COMMAND ${R2CCL_NVCC} ${r2ccl_nvcc_options} ${r2ccl_gencode} -fatbin -o ${r2ccl_fatbin} ${r2ccl_kernels}/all.cu
  COMMENT "nvcc: kernels for GPUs" VERBATIM)
add_custom_target(r2ccl_fatbin DEPENDS ${r2ccl_fatbin})
add_dependencies(r2device r2ccl_fatbin)
set_property(SOURCE device/cuda_image.cc APPEND PROPERTY OBJECT_DEPENDS ${r2ccl_fatbin})
set_property(SOURCE device/cuda_image.cc APPEND PROPERTY COMPILE_DEFINITIONS "R2CCL_FATBIN=\"${r2ccl_fatbin}\"")
message(STATUS "r2ccl: kernels for GPUs by ${R2CCL_NVCC}: ${r2ccl_gencode}")
