// The server of Thallium's tutorial "Transferring data over RDMA": it pulls six bytes of what a client exposes and prints
// them. Unlike the tutorial's, it listens where its argument says, prints the address, and ends at the end of standard
// input.

#include <iostream>
#include <string>
#include <thallium.hpp>
#include <thallium/serialization/stl/string.hpp>

namespace tl = thallium;

int main(int argc, char **argv) {
	tl::engine e(argc > 1 ? argv[1] : "tcp://127.0.0.1:1234", THALLIUM_SERVER_MODE, true, 1);
	std::function<void(tl::request const &, tl::bulk &)> receive = [&e](tl::request const &req, tl::bulk &remote) {
		std::vector<char> room(6);
		std::vector<std::pair<void *, std::size_t>> segments{{room.data(), room.size()}};
		tl::bulk local = e.expose(segments, tl::bulk_mode::write_only);
		remote.on(req.get_endpoint()) >> local;
		std::cout << "Server received bulk: " << std::string(room.data(), room.size()) << std::endl;
	};
	e.define("do_rdma", receive).disable_response();
	std::cout << "ready addr=" << std::string(e.self()) << std::endl;
	std::string line;
	std::getline(std::cin, line);
	e.finalize();
}
