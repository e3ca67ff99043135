//go:build tools

// Package tools only pins the program: bootstrap builds github.com/hashicorp/packer-plugin-amazon from this module.
package tools

import _ "github.com/hashicorp/packer-plugin-amazon"
