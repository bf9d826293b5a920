package rdmacore_test

import (
	"errors"
	"fmt"
	"log"

	"cinnabar/verbs/rdmacore"
)

// A program lists the RDMA devices of the machine and opens the first. The output
// depends on the machine.
func Example() {
	infos, err := rdmacore.Devices()
	if errors.Is(err, errors.ErrUnsupported) {
		log.Fatal("this machine has no RDMA device that the program can use: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	for _, in := range infos {
		fmt.Println(in.Name)
	}
	if len(infos) == 0 {
		return
	}
	dev, err := rdmacore.Open(infos[0].Name)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	attr, err := dev.Query()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(attr.Transport, attr.Caps)
}
