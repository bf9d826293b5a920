// The client of Thallium's tutorial "Transferring data over RDMA": it exposes a text and tells the server, which does not
// answer. Its arguments are the server's address and, unlike the tutorial's, how many bytes to expose; with them it keeps
// its memory until the end of standard input, since so much does not travel inside the request.

#include <iostream>
#include <string>
#include <thallium.hpp>

namespace tl = thallium;

int main(int argc, char **argv) {
	std::string address = argv[1];
	std::string protocol = "ofi+tcp://127.0.0.1";
	for (auto other : {"na+sm", "ofi+verbs"})
		if (address.rfind(other, 0) == 0)
			protocol = other;
	tl::engine e(protocol, THALLIUM_CLIENT_MODE, true, 1);
	tl::remote_procedure remote_do_rdma = e.define("do_rdma").disable_response();
	tl::endpoint server = e.lookup(address);
	std::string buffer = "Matthieu";
	buffer.push_back('\0');
	if (argc > 2)
		buffer.resize(std::stoul(argv[2]));
	std::vector<std::pair<void *, std::size_t>> segments{{&buffer[0], buffer.size()}};
	tl::bulk memory = e.expose(segments, tl::bulk_mode::read_only);
	remote_do_rdma.on(server)(memory);
	std::string line;
	if (argc > 2)
		std::getline(std::cin, line);
}
