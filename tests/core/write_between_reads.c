// Writes a weight when a second and a third read of it begin: as another thread might, but always.
//
// The first and the last page of the weight are protected in turn, so that each read of the weight
// from its begin to its end faults twice.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { kPage = 4096 };

static char *weight, *first_page, *last_page;
static size_t num_bytes;
static const char* contents[2];  // written alternately
static volatile int num_writes;
static struct sigaction before;

static void protect(char* page, int is_on) {
  mprotect(page, kPage, is_on ? PROT_NONE : PROT_READ | PROT_WRITE);
}

static void on_fault(int number, siginfo_t* fault, void* context) {
  (void)number;
  (void)context;
  char* const page = (char*)((uintptr_t)fault->si_addr & ~(uintptr_t)(kPage - 1));
  if (page != first_page && page != last_page) {
    sigaction(SIGSEGV, &before, NULL);
    return;
  }
  protect(page, 0);
  if (page == last_page) {
    protect(first_page, 1);
    return;
  }
  protect(last_page, 0);
  memcpy(weight, contents[++num_writes % 2], num_bytes);
  if (num_writes < 2) protect(last_page, 1);
}

// The weight has the contents `even`.
void begin_writes(char* memory, size_t size, const char* even, const char* odd) {
  weight = memory;
  num_bytes = size;
  contents[0] = even;
  contents[1] = odd;
  first_page = (char*)(((uintptr_t)memory + kPage - 1) & ~(uintptr_t)(kPage - 1));
  last_page = (char*)(((uintptr_t)memory + size) & ~(uintptr_t)(kPage - 1)) - kPage;
  num_writes = 0;
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &before);
  protect(last_page, 1);
}

// Returns how often the weight was written; after two writes it has its first contents again.
int end_writes(void) {
  protect(first_page, 0);
  protect(last_page, 0);
  sigaction(SIGSEGV, &before, NULL);
  return num_writes;
}
