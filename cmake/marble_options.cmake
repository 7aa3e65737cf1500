# Warnings and sanitizers that every target of this project shares.
add_library(marble_warnings INTERFACE)
target_compile_options(marble_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wsign-conversion;-Wshadow;-Werror>)

if(MARBLE_SANITIZE)
  add_compile_options(-fsanitize=${MARBLE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MARBLE_SANITIZE})
endif()
