// Command terraform-provider-talos is the Talos provider as a program, for OpenTofu that is run by hand.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"freehold.dev/freehold/internal/cloud/talos/provider"
)

// version is set by the linker.
var version = "dev"

func main() {
	if len(os.Args) == 2 && (os.Args[1] == "version" || os.Args[1] == "--version") {
		fmt.Fprintln(os.Stdout, "terraform-provider-talos", version)
		return
	}
	err := providerserver.Serve(context.Background(), provider.New(version), providerserver.ServeOpts{Address: provider.Address, ProtocolVersion: 6})
	if err != nil {
		fmt.Fprintln(os.Stderr, "terraform-provider-talos:", err)
		os.Exit(1)
	}
}
