package cinnabar

import (
	"os"

	"cinnabar/internal/na/ofitcp"
)

// envInterface names the interface that addresses are chosen from, as it does for libfabric's tcp provider.
const envInterface = "FI_TCP_IFACE"

// onInterface returns addr with the interface of the environment put in where addr leaves the choice open.
func onInterface(addr string) string { return ofitcp.OnInterface(addr, os.Getenv(envInterface)) }
