/* Loaded into the init of an emulated machine, and into what sets up its services, for what qemu-user lacks.
 *
 * - systemd makes a child in new namespaces by one clone(); qemu knows clone() as fork and as threads only and
 *   answers EINVAL. A fork whose child then leaves the namespaces comes to the same.
 * - qemu says of statx() that it has filled in the mount's id, and has not: every mount seems to be the same one.
 *   Without that claim systemd asks /proc.
 * - a message with no data, which carries file descriptors only, is neither sent nor received; one with data of no
 *   length is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* A new PID namespace would hold the child's children only, so that is not done here. */
#define NAMESPACES (CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWUSER | CLONE_NEWCGROUP)
#define MOUNT_IDS (0x1000U | 0x4000U) /* STATX_MNT_ID, STATX_MNT_ID_UNIQUE */

long syscall(long number, ...)
{
	static long (*next)(long, ...);
	long a[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);

	if (number == SYS_clone && (a[0] & NAMESPACES) && !(a[0] & ~(NAMESPACES | 0xff)) && !a[1]) {
		pid_t child = fork();
		if (child == 0 && unshare((int)(a[0] & NAMESPACES)) != 0)
			_exit(1);
		return child;
	}
	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int statx(int dirfd, const char *restrict path, int flags, unsigned int mask, struct statx *restrict buf)
{
	static int (*next)(int, const char *, int, unsigned int, struct statx *);
	int result;

	if (!next)
		next = (int (*)(int, const char *, int, unsigned int, struct statx *))dlsym(RTLD_NEXT, "statx");
	result = next(dirfd, path, flags, mask, buf);
	if (result == 0)
		buf->stx_mask &= ~MOUNT_IDS;
	return result;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	static ssize_t (*next)(int, const struct msghdr *, int);
	struct msghdr copy = *message;
	struct iovec nothing = {"", 0};

	if (!next)
		next = (ssize_t (*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
	if (copy.msg_iovlen == 0) {
		copy.msg_iov = &nothing;
		copy.msg_iovlen = 1;
	}
	return next(fd, &copy, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	static ssize_t (*next)(int, struct msghdr *, int);
	struct iovec nothing = {"", 0}, *given = message->msg_iov;
	size_t length = message->msg_iovlen;
	ssize_t result;

	if (!next)
		next = (ssize_t (*)(int, struct msghdr *, int))dlsym(RTLD_NEXT, "recvmsg");
	if (length == 0) {
		message->msg_iov = &nothing;
		message->msg_iovlen = 1;
	}
	result = next(fd, message, flags);
	message->msg_iov = given;
	message->msg_iovlen = length;
	return result;
}
