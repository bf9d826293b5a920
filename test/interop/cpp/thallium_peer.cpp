// thallium_peer: a Thallium process that serves the RPCs below and calls them at others, as told on standard input.
//
//     thallium_peer [OPTION]...
//
// It prints "ready addr=ADDRESS checksums=0|1", runs one command per line of standard input, each of which prints one
// line "COMMAND KEY=VALUE...", and ends at end of file or by a remote shutdown, with "bye ret=0".
//
// Options:
//     --init STRING     address to listen at; ofi+tcp://127.0.0.1
//     --client          do not listen for requests
//     --config JSON     Margo's configuration
//     --shutdown        allow the remote shutdown
//
// RPCs of provider 0, with arguments -> results:
//     sum        int32, int32 -> int32
//     divide     int32, int32 -> int32, int32      quotient and remainder
//     hello      string, one-way                   prints "event hello size=..."
//     hellos     -> int32                          how many hellos there were
//     nothing    ->
//     where      -> string, string                 the caller's address, the own one
//     later      int32 -> int32                    answered by another thread, after the handler has returned
//     slow       int32 ->                          sleeps so many milliseconds, prints "event slow"
//     callback   int32, int32 -> int32             calls sum at the caller
//     value:N    T -> T                            for each value N of values.hpp: answers with what came
//     transfer   transfer_in -> uint64, uint64     moves memory; the bytes moved, the FNV-1a hash of the local memory
//     bulks      vector<bulk>, map<string, optional_bulk> -> the same
//     null       bulk -> bool, bulk                whether it is null; a null bulk
// and of provider 42, "calculator": sum, product (a method that answers by its return value).
//
// Commands:
//     target addr=A | sum x= y= provider= | divide x= y= | hello name= | nothing | where | later x= | callback x= y=
//     values | transfer spelling= total= size= ... | bulks | null | async count= | timed ms= timeout=
//     identity provider= | shutdown | quit

#include <atomic>
#include <functional>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

#include <unistd.h>

#include "values.hpp"

#ifdef HG_HAS_CHECKSUMS
#define CHECKSUMS "1"
#else
#define CHECKSUMS "0"
#endif

namespace tl = thallium;

// What a transfer does. Sizes of 0 select nothing: the whole memory is meant.
struct transfer_in {
	std::string spelling; // "remote>>local", "local<<remote", "local>>remote", "remote<<local"
	std::uint64_t total = 0; // bytes of the local memory
	std::uint64_t remote_offset = 0, remote_size = 0, local_offset = 0, local_size = 0;
	std::uint8_t seed = 0; // of the pattern that the local memory has
	tl::bulk remote;
	template <typename A> void serialize(A &ar) {
		ar(spelling, total, remote_offset, remote_size, local_offset, local_size, seed, remote);
	}
};

struct holder {
	std::int32_t tag = 0;
	tl::bulk bulk;
	template <typename A> void serialize(A &ar) { ar(tag, bulk); }
};

static std::mutex output;

static void say(std::string const &line) {
	std::lock_guard<std::mutex> hold(output);
	std::cout << line << std::endl;
}

// pattern and fnv1a are those of c/words.h.
static std::vector<char> pattern(std::size_t n, std::uint32_t seed) {
	std::vector<char> b(n);
	for (std::size_t i = 0; i < n; i++)
		b[i] = char(seed + i * 31 + (i >> 8) * 17 + (i >> 16) * 5);
	return b;
}

static std::uint64_t fnv1a(std::vector<char> const &b) {
	std::uint64_t h = 0xcbf29ce484222325;
	for (unsigned char c : b)
		h = (h ^ c) * 0x100000001b3;
	return h;
}

static tl::bulk expose(tl::engine &e, std::vector<char> &b, tl::bulk_mode mode) {
	std::vector<std::pair<void *, std::size_t>> segments{{b.data(), b.size()}};
	return e.expose(segments, mode);
}

// move carries a transfer out in the spelling that is asked for.
static std::size_t move(tl::engine &e, tl::endpoint const &ep, transfer_in const &in, std::vector<char> &memory) {
	bool pull = in.spelling == "remote>>local" || in.spelling == "local<<remote";
	tl::bulk whole = expose(e, memory, pull ? tl::bulk_mode::write_only : tl::bulk_mode::read_only);
	if (in.remote_size == 0 && in.local_size == 0) {
		tl::remote_bulk remote = in.remote.on(ep);
		if (in.spelling == "remote>>local")
			return remote >> whole;
		if (in.spelling == "local<<remote")
			return whole << remote;
		if (in.spelling == "local>>remote")
			return whole >> remote;
		return remote << whole;
	}
	tl::bulk_segment local = whole(in.local_offset, in.local_size);
	tl::remote_bulk remote = in.remote(in.remote_offset, in.remote_size).on(ep);
	if (in.spelling == "remote>>local")
		return remote >> local;
	if (in.spelling == "local<<remote")
		return local << remote;
	if (in.spelling == "local>>remote")
		return local >> remote;
	return remote << local;
}

// calculator is provider 42.
class calculator : public tl::provider<calculator> {
	int product(int x, int y) const { return x * y; }
	void sum(tl::request const &req, int x, int y) { req.respond(x + y); }

  public:
	calculator(tl::engine const &e, std::uint16_t id) : tl::provider<calculator>(e, id, "calculator") {
		define("product", &calculator::product);
		define("sum", &calculator::sum);
	}
};

static std::atomic<int> hellos;

static void serve(tl::engine &e) {
	e.define("sum", [](tl::request const &req, std::int32_t x, std::int32_t y) { req.respond(x + y); });
	e.define("divide", [](tl::request const &req, std::int32_t x, std::int32_t y) { req.respond(x / y, x % y); });
	e.define("hello", [](tl::request const &, std::string const &name) {
		hellos++;
		say("event hello size=" + std::to_string(name.size()));
	}).disable_response();
	e.define("hellos", [](tl::request const &req) { req.respond(std::int32_t(hellos)); });
	e.define("nothing", [](tl::request const &req) { req.respond(); });
	e.define("where", [e](tl::request const &req) {
		req.respond(std::string(req.get_endpoint()), std::string(e.self()));
	});
	e.define("later", [e](tl::request const &req, std::int32_t x) {
		e.get_handler_pool().make_thread([req, x]() { req.respond(x + 1); }, tl::anonymous());
	});
	e.define("slow", [e](tl::request const &req, std::int32_t ms) {
		tl::thread::sleep(e, ms);
		req.respond();
		say("event slow");
	});
	e.define("callback", [e](tl::request const &req, std::int32_t x, std::int32_t y) mutable {
		std::int32_t sum = e.define("sum").on(req.get_endpoint())(x, y);
		req.respond(sum);
	});
	e.define("transfer", [e](tl::request const &req, transfer_in const &in) mutable {
		std::vector<char> memory = pattern(in.total, in.seed);
		std::uint64_t n = move(e, req.get_endpoint(), in, memory);
		req.respond(n, fnv1a(memory));
	});
	e.define("bulks", [](tl::request const &req, std::vector<tl::bulk> const &b, std::map<std::string, holder> const &m) {
		req.respond(b, m);
	});
	e.define("null", [](tl::request const &req, tl::bulk const &b) { req.respond(b.is_null(), tl::bulk()); });
	each([&](char const *name, auto &value) {
		using T = std::decay_t<decltype(value)>;
		e.define(std::string("value:") + name, std::function<void(tl::request const &, T &)>(
			[](tl::request const &req, T &v) { req.respond(v); }));
	});
}

// arguments are the KEY=VALUE words of a command.
struct arguments {
	std::map<std::string, std::string> words;
	std::string text(std::string const &key, std::string const &otherwise = "") const {
		auto i = words.find(key);
		return i == words.end() ? otherwise : i->second;
	}
	std::int64_t number(std::string const &key, std::int64_t otherwise = 0) const {
		auto i = words.find(key);
		return i == words.end() ? otherwise : std::stoll(i->second);
	}
};

// client runs commands against the target.
struct client {
	tl::engine &e;
	tl::endpoint to;

	std::string sum(arguments const &a, char const *name = "sum") {
		tl::provider_handle ph(to, a.number("provider"));
		std::int32_t sum = e.define(name).on(ph)(std::int32_t(a.number("x")), std::int32_t(a.number("y")));
		return "value=" + std::to_string(sum);
	}
	std::string divide(arguments const &a) {
		std::int32_t q, r;
		e.define("divide").on(to)(std::int32_t(a.number("x")), std::int32_t(a.number("y"))).unpack(q, r);
		return "quotient=" + std::to_string(q) + " remainder=" + std::to_string(r);
	}
	std::string hello(arguments const &a) {
		std::string name = a.number("size") ? std::string(a.number("size"), 'x') : a.text("name");
		e.define("hello").disable_response().on(to)(name);
		return "";
	}
	std::string where() {
		std::string me, you;
		std::tie(me, you) = e.define("where").on(to)().as<std::string, std::string>();
		return "me=" + me + " you=" + you;
	}
	// values sends each value and wants the same bytes back.
	std::string values() {
		int count = 0, wrong = 0;
		each([&](char const *name, auto &value) {
			using T = std::decay_t<decltype(value)>;
			T back{};
			e.define(std::string("value:") + name).on(to)(value).unpack(back);
			count++;
			if (bytes_of(e, back) != bytes_of(e, value)) {
				wrong++;
				say(std::string("event wrong ") + name + " " + hex(bytes_of(e, back)));
			}
		});
		return "count=" + std::to_string(count) + " wrong=" + std::to_string(wrong);
	}
	// transfer exposes memory for the other side to move to or from.
	std::string transfer(arguments const &a) {
		transfer_in in;
		in.spelling = a.text("spelling");
		bool pull = in.spelling == "remote>>local" || in.spelling == "local<<remote";
		in.total = a.number("total");
		in.remote_offset = a.number("remote-offset"), in.remote_size = a.number("remote-size");
		in.local_offset = a.number("local-offset"), in.local_size = a.number("local-size");
		in.seed = a.number("seed");
		std::vector<char> memory = pattern(a.number("size"), in.seed + 1);
		in.remote = expose(e, memory, pull ? tl::bulk_mode::read_only : tl::bulk_mode::write_only);
		std::uint64_t n, hash;
		e.define("transfer").on(to)(in).unpack(n, hash);
		return "count=" + std::to_string(n) + " hash=" + std::to_string(hash) + " mine=" + std::to_string(fnv1a(memory));
	}
	std::string bulks() {
		std::vector<char> memory = pattern(100000, 1);
		tl::bulk b = expose(e, memory, tl::bulk_mode::read_write);
		std::vector<tl::bulk> sent{b, tl::bulk(), b}, list;
		std::map<std::string, holder> named{{"one", {1, b}}, {"null", {2, tl::bulk()}}}, map;
		e.define("bulks").on(to)(sent, named).unpack(list, map);
		bool ok = list.size() == 3 && list[0].size() == 100000 && list[1].is_null() && list[2].segment_count() == 1 &&
			map.size() == 2 && map["one"].tag == 1 && map["one"].bulk.size() == 100000 && map["null"].bulk.is_null();
		return "equal=" + std::to_string(ok);
	}
	std::string null() {
		bool was = false;
		tl::bulk back;
		e.define("null").on(to)(tl::bulk()).unpack(was, back);
		return "was=" + std::to_string(was) + " is=" + std::to_string(back.is_null());
	}
	std::string async(arguments const &a) {
		int n = a.number("count"), ok = 0;
		std::vector<tl::async_response> calls;
		for (int i = 0; i < n; i++)
			calls.push_back(e.define("sum").on(to).async(std::int32_t(i), std::int32_t(1)));
		for (int i = 0; i < n; i++)
			ok += calls[i].wait().as<std::int32_t>() == i + 1;
		return "ok=" + std::to_string(ok);
	}
	std::string timed(arguments const &a) {
		try {
			e.define("slow").on(to).timed(std::chrono::milliseconds(a.number("timeout")), std::int32_t(a.number("ms")));
		} catch (tl::timeout const &) {
			return "timeout=1";
		}
		return "timeout=0";
	}
	std::string run(std::string const &word, arguments const &a) {
		if (word == "sum" || word == "product") return sum(a, word.c_str());
		if (word == "divide") return divide(a);
		if (word == "hello") return hello(a);
		if (word == "nothing") return e.define("nothing").on(to)(), "";
		if (word == "where") return where();
		if (word == "later") return "value=" + std::to_string(e.define("later").on(to)(std::int32_t(a.number("x"))).as<std::int32_t>());
		if (word == "callback") return sum(a, "callback");
		if (word == "unknown") return e.define("no_such_rpc").on(to)(), "";
		if (word == "values") return values();
		if (word == "transfer") return transfer(a);
		if (word == "bulks") return bulks();
		if (word == "null") return null();
		if (word == "async") return async(a);
		if (word == "timed") return timed(a);
		if (word == "identity") return "name=" + tl::provider_handle(to, a.number("provider")).get_identity();
		if (word == "shutdown") return e.shutdown_remote_engine(to), "";
		throw std::runtime_error("no such command");
	}
};

// command runs one line.
static void command(client &c, std::string const &line) {
	std::istringstream in(line);
	std::string word, w;
	arguments a;
	in >> word;
	while (in >> w)
		a.words[w.substr(0, w.find('='))] = w.find('=') == std::string::npos ? "" : w.substr(w.find('=') + 1);
	std::string result;
	try {
		if (word == "target")
			c.to = c.e.lookup(a.text("addr"));
		else
			result = c.run(word, a);
	} catch (tl::margo_exception const &x) {
		return say(word + " ret=" + std::to_string(x.error()));
	} catch (std::exception const &x) {
		std::cerr << x.what() << std::endl;
		return say(word + " ret=-1");
	}
	say(word + " ret=0" + (result.empty() ? "" : " ") + result);
}

int main(int argc, char **argv) {
	std::string init = "ofi+tcp://127.0.0.1", config = R"({"use_progress_thread":true,"rpc_thread_count":1})";
	bool listen = true, shutdown = false;
	for (int i = 1; i < argc; i++) {
		std::string option = argv[i];
		if (option == "--client") listen = false;
		else if (option == "--shutdown") shutdown = true;
		else if (option == "--init" && i + 1 < argc) init = argv[++i];
		else if (option == "--config" && i + 1 < argc) config = argv[++i];
		else return std::cerr << "thallium_peer: what is " << option << "?" << std::endl, 1;
	}
	tl::engine e(init, listen ? THALLIUM_SERVER_MODE : THALLIUM_CLIENT_MODE, config);
	auto *provider = listen ? new calculator(e, 42) : nullptr;
	std::atomic<bool> over{false};
	e.push_finalize_callback([&] {
		delete provider;
		over = true;
	});
	if (listen)
		serve(e);
	if (shutdown)
		e.enable_remote_shutdown();
	std::string addr = listen ? std::string(e.self()) : "";
	say("ready addr=" + addr + " checksums=" CHECKSUMS);
	if (shutdown) {
		e.wait_for_finalize();
	} else {
		client c{e, tl::endpoint()};
		std::string line;
		while (std::getline(std::cin, line) && line != "quit")
			command(c, line);
		c.to = tl::endpoint();
		e.finalize();
	}
	say("bye ret=0");
}
