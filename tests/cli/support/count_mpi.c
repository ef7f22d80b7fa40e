/* Counts the payload that a rank sends, below the program: a PMPI shim for LD_PRELOAD. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static long long sent;

static void add(int count, MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  sent += (long long)count * size;
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
  add(count, type);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Ibcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request *request) {
  int rank = 0, size = 1;
  PMPI_Comm_rank(comm, &rank);
  PMPI_Comm_size(comm, &size);
  if (rank == root) add(count * (size - 1), type);
  return PMPI_Ibcast(data, count, type, root, comm, request);
}

long long mpi_bytes_sent(void) { return sent; }

int MPI_Finalize(void) {
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  fprintf(stderr, "rank %d sent %lld bytes\n", rank, sent);
  return PMPI_Finalize();
}
