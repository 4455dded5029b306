#include "pipetrain/cli/run.h"

int main(int argc, char** argv) {
  return pipetrain::run(argc, argv);
}
