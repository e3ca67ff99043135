// SPDX-License-Identifier: GPL-2.0
// A stub: it stands for the vendor's kernel module in tests, and does nothing.
#include <linux/module.h>

static int __init stub_init(void)
{
	return 0;
}

static void __exit stub_exit(void)
{
}

module_init(stub_init);
module_exit(stub_exit);
MODULE_DESCRIPTION("stub of the Neuron driver, for tests");
MODULE_LICENSE("GPL");
MODULE_VERSION("@VERSION@");
