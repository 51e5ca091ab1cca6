/* For LD_PRELOAD: the metadata server's address leads to a port of this machine, and looking up a name takes its time:
   a minute, after which there is none, or the seconds given, after which it leads to that port too. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int connect(int handle, const struct sockaddr *address, socklen_t length) {
  int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
  const char *port = getenv("FAKE_METADATA_PORT");
  const struct sockaddr_in *asked = (const struct sockaddr_in *)address;
  if (port && address->sa_family == AF_INET && asked->sin_addr.s_addr == inet_addr("169.254.169.254")) {
    struct sockaddr_in here = *asked;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    here.sin_port = htons(atoi(port));
    return real(handle, (struct sockaddr *)&here, sizeof here);
  }
  return real(handle, address, length);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
  int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
  if (name && strspn(name, "0123456789.") < strlen(name)) {
    const char *seconds = getenv("FAKE_LOOKUP_SECONDS");
    sleep(seconds ? atoi(seconds) : 60);
    return seconds ? real("127.0.0.1", getenv("FAKE_METADATA_PORT"), hints, found) : EAI_AGAIN;
  }
  return real(name, service, hints, found);
}
