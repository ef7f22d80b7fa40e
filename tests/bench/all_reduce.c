/* One rank of tests/bench/collectives.py: median time of Open MPI's all-reduce by size.
   mpicc -O2 all_reduce.c -o all_reduce; mpirun -np 2 ./all_reduce 1024 1048576 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void fill(float *x, int count) {
  for (int i = 0; i < count; ++i) x[i] = 1;
}

int main(int argc, char **argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int k = 1; k < argc; ++k) {
    const long bytes = atol(argv[k]);
    const int count = (int)(bytes / 4);
    const int rounds = bytes < 1 << 16 ? 3000 : bytes < 1 << 24 ? 500 : 15;
    float *x = malloc(bytes);
    double *times = malloc(sizeof(double) * rounds);
    fill(x, count);
    for (int i = -10; i < rounds; ++i) {
      const double start = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if (i >= 0) times[i] = MPI_Wtime() - start;
      if (i % 50 == 0) fill(x, count); /* sums must stay finite */
    }
    qsort(times, rounds, sizeof(double), ascending);
    if (rank == 0) printf("{\"bytes\": %ld, \"median_us\": %.2f}\n", bytes, times[rounds / 2] * 1e6);
    fflush(stdout);
    free(times);
    free(x);
  }
  MPI_Finalize();
  return 0;
}
