// The compiled kernels, embedded. R2CCL_FATBIN is the file that nvcc made; not defined: there was no nvcc.
#include "cuda_kernels.h"

#if defined(R2CCL_FATBIN)
asm(R"(
  .section .rodata
  .balign 64
  .hidden r2ccl_fatbin
  .global r2ccl_fatbin
r2ccl_fatbin:
  .incbin ")" R2CCL_FATBIN R"("
  .byte 0
  .text
)");
extern "C" const unsigned char r2ccl_fatbin[];
#endif

namespace r2ccl {

const void* cuda_kernel_image(bool* built) noexcept {
#if defined(R2CCL_FATBIN)
  *built = true;
  return r2ccl_fatbin;
#else
  // Something that a driver refuses in its own words.
  *built = false;
  return "no kernels";
#endif
}

}  // namespace r2ccl
