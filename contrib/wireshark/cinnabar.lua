-- A dissector for Wireshark and tshark, which decodes the messages that "cinnabar wire" decodes: Mercury's calls over ofi+tcp and ofi+verbs,
-- RDMA operations over RoCEv2 and iWARP, and the messages of the paper's file transfer.
--
-- Install it in a folder that Help > About Wireshark > Folders calls "Personal Lua Plugins", or load it once:
--
--     tshark -X lua_script:cinnabar.lua -r calls.pcap -Y cinnabar -T fields -e frame.number -e cinnabar.message
--
-- Each message has the field cinnabar.message, with the operation and the fields of a line of "cinnabar wire", and cinnabar.protocol. The
-- docs/wire.md page of the project lists both, and the parts that only the command decodes.

local p = Proto("cinnabar", "cinnabar: Mercury, RDMA and file transfer")
local f_message = ProtoField.string("cinnabar.message", "Message")
local f_protocol = ProtoField.string("cinnabar.protocol", "Protocol")
p.fields = { f_message, f_protocol }
local tcp_stream = Field.new("tcp.stream")

-- Arithmetic on bits, in whichever library the version of Lua has.
local xor, band, rshift
if bit or bit32 then
    local b = bit or bit32
    xor, band, rshift = b.bxor, b.band, b.rshift
else
    xor = load("return function(a, b) return a ~ b end")()
    band = load("return function(a, b) return a & b end")()
    rshift = load("return function(a, n) return a >> n end")()
end

local crc_table = {}
for i = 0, 255 do
    local c = i
    for _ = 1, 8 do
        if c % 2 == 1 then c = xor(rshift(c, 1), 0x82f63b78) else c = rshift(c, 1) end
    end
    crc_table[i] = c % 4294967296
end

-- crc32c returns the checksum of the first n bytes of a buffer.
local function crc32c(t, n)
    local c = 0xffffffff
    local raw = t(0, n):raw()
    for i = 1, n do
        c = xor(rshift(c, 8) % 16777216, crc_table[band(xor(c, raw:byte(i)), 0xff)]) % 4294967296
    end
    return xor(c, 0xffffffff) % 4294967296
end

-- Numbers of 64 bits: u64 returns one that is exact below 2^53, and dec and hex its text.
local function u64(t, at) return t(at, 4):le_uint() + t(at + 4, 4):le_uint() * 4294967296 end
local function dec(n) return string.format("%.0f", n) end
local function dec64(t, at) return tostring(t(at, 8):le_uint64()) end
local function hex(s)
    s = s:lower():gsub("^0+", "")
    if s == "" then s = "0" end
    return "0x" .. s
end
local function hex64le(t, at) return hex(t(at, 8):le_uint64():tohex(16)) end
local function hex64be(t, at) return hex(t(at, 8):uint64():tohex(16)) end

local codes = { [0] = "HG_SUCCESS", "HG_PERMISSION", "HG_NOENTRY", "HG_INTERRUPT", "HG_AGAIN", "HG_NOMEM", "HG_ACCESS", "HG_FAULT", "HG_BUSY",
    "HG_EXIST", "HG_NODEV", "HG_INVALID_ARG", "HG_PROTOCOL_ERROR", "HG_OVERFLOW", "HG_MSGSIZE", "HG_PROTONOSUPPORT",
    "HG_OPNOTSUPPORTED", "HG_ADDRINUSE", "HG_ADDRNOTAVAIL", "HG_HOSTUNREACH", "HG_TIMEOUT", "HG_CANCELED", "HG_IO_ERROR",
    "HG_HOSTFIREWALL", "HG_CHECKSUM_ERROR", "HG_NA_ERROR", "HG_OTHER_ERROR" }
local function code_name(n)
    if n == 65536 then return "DRAINING" end
    return codes[n] or ('"HG return code ' .. dec(n) .. '"')
end

-- word returns a peer's text as one word of printable characters of ASCII.
local function word(s)
    if s:find('^[!#-<>-~]+$') then return s end
    s = s:gsub("[^ -~]", "?"):gsub('[\\"]', "\\%0")
    return '"' .. s .. '"'
end

-- State of the first pass over a file. Later passes find the texts in done, because they may come in any order.
local done, calls, streams, pairs_of, programs, asked = {}, {}, {}, {}, {}, {}
function p.init() done, calls, streams, pairs_of, programs, asked = {}, {}, {}, {}, {}, {} end

local function show(tree, range, protocol, text)
    local sub = tree:add(p, range, "cinnabar: " .. protocol .. " " .. text)
    sub:add(f_protocol, range, protocol)
    sub:add(f_message, range, text)
end

-- Mercury ---------------------------------------------------------------------------------------------------------------------------------

-- bulk_length returns the length of the memory that a bulk descriptor of n bytes describes, or nil if the bytes are none.
local function bulk_length(t, at, n)
    local stop = at + n
    if n < 16 then return nil end
    local total, count, flags = u64(t, at), t(at + 8, 4):le_uint(), t(at + 12, 4):le_uint()
    local off = at + 16
    if count == 0 or off + count * 16 > stop then return nil end
    local sum, first, bases = 0, true, {}
    for i = 1, count do
        bases[i] = u64(t, off)
        sum = sum + u64(t, off + 8)
        off = off + 16
    end
    if sum ~= total then return nil end
    local has = function(b) return math.floor(flags / b) % 2 == 1 end
    local function handles()
        if count == 1 or has(0x40) then
            if bases[1] == 0 and not has(0x40) then return true end
            if off + 8 > stop then return false end
            local size = u64(t, off)
            off = off + 8 + size
            return off <= stop
        end
        if off + 8 * count > stop then return false end
        local sizes = off
        off = off + 8 * count
        for i = 1, count do
            local size = u64(t, sizes + 8 * (i - 1))
            if bases[i] == 0 and size ~= 0 then return false end
            off = off + size
            if off > stop then return false end
        end
        return true
    end
    if not handles() then return nil end
    if has(8) and not handles() then return nil end
    if has(0x20) then
        if off + 8 > stop then return nil end
        off = off + 8 + u64(t, off) + 1
        if off > stop then return nil end
    end
    if has(4) then off = off + total end
    if off ~= stop then return nil end
    return total
end

-- bulks returns the fields of the bulk descriptors in arguments or results.
local function bulks(t, at, n)
    local text = ""
    local stop = at + math.min(n, 16384)
    local tries = 0
    while stop - at >= 40 and tries < 64 do
        local size, segments = u64(t, at), t(at + 16, 4):le_uint()
        local total = nil
        if size >= 32 and size <= stop - at - 8 and t(at + 14, 2):uint() == 0 and segments > 0 and segments * 16 <= size - 16 then
            tries = tries + 1
            total = bulk_length(t, at + 8, size)
        end
        if total then
            text = text .. " bulk=" .. dec(total)
            at = at + 8 + size
        else
            at = at + 1
        end
    end
    return text
end

-- Native RPCs ------------------------------------------------------------------------------------------------------------------------------

-- duration returns a number of nanoseconds as Go prints it.
local function duration(ns)
    if ns == 0 then return "0s" end
    if ns < 1000 then return dec(ns) .. "ns" end
    local function decimals(unit)
        local rest = string.format("%09.0f", ns % unit * (1000000000 / unit)):gsub("0+$", "")
        if rest == "" then return "" end
        return "." .. rest
    end
    if ns < 1000000 then return dec(math.floor(ns / 1000)) .. decimals(1000) .. "µs" end
    if ns < 1000000000 then return dec(math.floor(ns / 1000000)) .. decimals(1000000) .. "ms" end
    local seconds = math.floor(ns / 1000000000)
    local text = dec(seconds % 60) .. decimals(1000000000) .. "s"
    if seconds >= 60 then text = dec(math.floor(seconds / 60) % 60) .. "m" .. text end
    if seconds >= 3600 then text = dec(math.floor(seconds / 3600)) .. "h" .. text end
    return text
end

-- metadata returns the place behind the metadata at a place, or nil if its parts do not fit before stop.
local function metadata(t, at, stop)
    if at >= stop then return nil end
    local count = t(at, 1):uint()
    if count > 64 then return nil end
    at = at + 1
    for _ = 1, count do
        if at >= stop then return nil end
        local key = t(at, 1):uint()
        if key == 0 or key > 128 or at + 1 + key + 2 > stop then return nil end
        at = at + 1 + key + 2 + t(at + 1 + key, 2):le_uint()
        if at > stop then return nil end
    end
    return at
end

-- request_head returns the fields of the envelope of a native request, or nil. flags and n are those of its first eight bytes.
local function request_head(t, at, stop, flags, n)
    local id, time = t(at + 8, 8):le_uint64(), u64(t, at + 16)
    local finish = at + n
    if n < 24 or finish > stop or id == UInt64(0) or time >= 9223372036854775808 or flags > 15 then return nil end
    local off = at + 24
    if math.floor(flags / 4) % 2 == 1 then
        if off + 27 > finish then return nil end
        off = off + 27 + t(off + 25, 2):le_uint()
    end
    if flags % 4 > 0 then
        if off >= finish then return nil end
        off = off + 1 + t(off, 1):uint()
    end
    if flags % 2 == 1 then off = off + 8 end
    if metadata(t, off, finish) ~= finish then return nil end
    return string.format("%s call-id=%s remaining=%s arguments=%d", flags >= 8 and "stream" or "call", hex64le(t, at + 8), duration(time), stop - finish)
end

-- response_head returns those of a native response.
local function response_head(t, at, stop, flags, n)
    local finish = at + n
    if n < 8 or finish > stop or flags > 7 or flags % 4 == 3 or flags == 4 or flags == 5 then return nil end
    local off = metadata(t, at + 8 + (flags % 2) * 8, finish)
    if not off then return nil end
    if flags < 2 then
        if off ~= finish then return nil end
        return "results results=" .. (stop - finish)
    end
    if off + 7 > finish then return nil end
    local code = t(off, 4):le_uint()
    off = off + 6 + t(off + 4, 2):le_uint()
    if code == 0 or off >= finish then return nil end
    local count = t(off, 1):uint()
    off = off + 1
    if count > 16 then return nil end
    for _ = 1, count do
        if off >= finish then return nil end
        off = off + 1 + t(off, 1):uint()
        if off + 2 > finish then return nil end
        off = off + 2 + t(off, 2):le_uint()
    end
    if off ~= finish then return nil end
    return "failure error=" .. code_name(code)
end

local frame_kinds = { cnsp = { "put", 1 }, cnsc = { "credit", 2 }, cnsg = { "get", 0 }, cnse = { "elements", 3 } } -- with the flags that each may have

-- frame_head returns those of a frame of a stream.
local function frame_head(t, at, stop, flags, n, kind)
    if n ~= 32 or stop - at < 32 or flags - flags % 4 ~= 0 or band(flags, kind[2]) ~= flags or t(at + 8, 8):le_uint64() == UInt64(0) then return nil end
    return string.format("%s call-id=%s sequence=%s count=%s end=%s", kind[1], hex64le(t, at + 8), dec64(t, at + 16), dec(t(at + 24, 4):le_uint()),
        flags % 2 == 1 and "true" or "false")
end

-- envelope returns the field native of n bytes behind Margo's header, with the fields that belong to it.
local function envelope(t, at, n)
    local text, stop = nil, at + n
    if n >= 8 and t(at + 4, 1):uint() == 1 then
        local magic, flags, size = t(at, 4):raw(), t(at + 5, 1):uint(), t(at + 6, 2):le_uint()
        if magic == "cnrq" and n >= 24 then
            text = request_head(t, at, stop, flags, size)
        elseif magic == "cnrs" then
            text = response_head(t, at, stop, flags, size)
        elseif magic == "cnca" and flags == 0 and size >= 1 and size <= 256 and n == 8 + 8 * size then
            text = "cancel call-id=" .. hex64le(t, at + 8) .. " calls=" .. size
        elseif frame_kinds[magic] then
            text = frame_head(t, at, stop, flags, size, frame_kinds[magic])
        end
    end
    if text then return " native=" .. text end
    return ' native-problem="no envelope of package native"'
end

-- Mercury's ids and messages --------------------------------------------------------------------------------------------------------------

local known = { ["788dd320"] = "__shutdown__", ["6e31f542"] = "__identity__" } -- names of Margo's RPCs, by the upper halves of their ids

-- id_text returns the fields of an RPC's id, which is the text of 16 hexadecimal digits.
local function id_text(id)
    local text = " id=0x" .. id
    local name = known[id:sub(1, 8)]
    if name then text = text .. " rpc=" .. name end
    if id:sub(1, 8) ~= "00000000" and id:sub(13) ~= "ffff" then
        text = text .. " provider=" .. tonumber(id:sub(13), 16)
    end
    return text
end

local function flag_text(flags, long)
    local list = {}
    if flags % 2 == 1 then list[#list + 1] = "more-data" end
    if math.floor(flags / 2) % 2 == 1 then list[#list + 1] = "no-response" end
    if long then list[#list + 1] = "checksums" end
    if #list == 0 then return "" end
    return " flags=" .. table.concat(list, ",")
end

-- request returns the text of a request of n bytes. from names the connection and its direction.
local function request(t, at, n, tag, from)
    local text, stop = " tag=" .. tag, at + n
    local origin = ""
    if n >= 28 and t(at, 2):uint() == 0x0200 and t(at + 16, 1):uint() == 0xd7 then
        origin = string.format(" origin=%s:%d", tostring(t(at + 4, 4):ipv4()), t(at + 2, 2):uint())
        at = at + 16
    elseif n >= 30 and t(at + 18, 1):uint() == 0xd7 then
        origin = string.format(" origin=[%s]:%d", tostring(t(at, 16):ipv6()), t(at + 16, 2):uint())
        at = at + 18
    end
    if stop - at < 12 or t(at, 1):uint() ~= 0xd7 or t(at + 1, 1):uint() ~= 5 then
        return "malformed" .. text .. ' problem="no request of Mercury"'
    end
    local id, flags = t(at + 2, 8):uint64():tohex(16):lower(), t(at + 10, 1):uint()
    local long = flags >= 128
    local head = long and 20 or 16
    if stop - at < head then return "malformed" .. text .. ' problem="no request of Mercury"' end
    local operation = "request"
    if math.floor(flags / 2) % 2 == 1 then operation = "one-way" end
    calls[from .. ":" .. tag] = id
    text = operation .. text .. origin .. id_text(id) .. flag_text(flags, long)
    at = at + head
    text = text .. " payload=" .. (stop - at)
    local skip = 0
    if id:sub(1, 8) ~= "00000000" and id:sub(9, 12) == "6e76" and flags % 2 == 0 and stop - at >= 8 then
        skip = 8 -- Margo's header
        text = text .. envelope(t, at + skip, stop - at - skip)
    end
    return text .. bulks(t, at + skip, stop - at - skip)
end

-- response returns the text of a response. to names the connection and the direction of requests.
local function response(t, at, n, tag, to)
    local text, stop = " tag=" .. tag, at + n
    if n == 1 then return "fetched" .. text end
    local id = calls[to .. ":" .. tag]
    if id then text = text .. id_text(id) end
    if n < 12 then return "malformed" .. text .. ' problem="no response of Mercury"' end
    local code, flags = t(at, 1):uint(), t(at + 1, 1):uint()
    local long = flags >= 128
    local head = long and 20 or 16
    text = "response" .. text .. " code=" .. code_name(code) .. flag_text(flags, long)
    if code ~= 0 then return text end
    if n < head then return "malformed" .. " tag=" .. tag .. ' problem="no response of Mercury"' end
    at = at + head
    text = text .. " payload=" .. (stop - at)
    if id and id:sub(1, 8) ~= "00000000" and flags % 2 == 0 and stop - at >= 4 then
        local margo = t(at, 4):le_uint()
        if margo ~= 0 then
            text = text .. " margo-code=" .. code_name(math.min(margo, 255))
        elseif id:sub(9, 12) == "6e76" then
            text = text .. envelope(t, at + 4, stop - at - 4)
        end
    end
    return text .. bulks(t, at, stop - at)
end

-- RDMA ------------------------------------------------------------------------------------------------------------------------------------

local flows = { [0] = "unspecified", "on", "off" }

-- offer returns the fields of rxm's private data of a connection request, or nil.
local function offer(t, at, n)
    if n < 25 or t(at, 1):uint() ~= 24 or t(at + 1, 1):uint() ~= 1 or t(at + 2, 1):uint() ~= 2 or t(at + 3, 1):uint() ~= 4 or t(at + 4, 1):uint() ~= 3
        or t(at + 7, 1):uint() > 2 or t(at + 8, 1):uint() ~= 0 or t(at + 9, 4):le_uint() ~= 16384 or t(at + 5, 2):le_uint() == 0 then
        return nil
    end
    return string.format(" program=rxm port=%d credits=%s index=%d process=%s", t(at + 5, 2):le_uint(), flows[t(at + 7, 1):uint()],
        t(at + 17, 4):le_uint(), dec(t(at + 21, 4):le_uint()))
end

-- acceptance returns the fields of those of an acceptance, or nil.
local function acceptance(t, at, n)
    if n < 17 or t(at, 1):uint() ~= 16 or t(at + 13, 1):uint() > 2 then return nil end
    return string.format(" program=rxm credits=%s index=%d process=%s", flows[t(at + 13, 1):uint()], t(at + 1, 4):le_uint(), dec(t(at + 5, 4):le_uint()))
end

-- private returns a field with the length of other private data.
local function private(t, at, n)
    while n > 0 and t(at + n - 1, 1):uint() == 0 do n = n - 1 end
    if n == 0 then return "" end
    return " private=" .. n
end

local xfer_codes = { "failed", "name refused", "file exists", "cannot store", "cannot read the source", "file changed while it was sent", "data corrupted",
    "protocol broken", "too large", "receiver busy", "no common protocol", "no progress", "cancelled", "connection failed" }

-- xfer_error returns the fields of an error message of a file transfer, or nil.
local function xfer_error(t, at, n)
    if n < 4 then return nil end
    local code, len = t(at, 2):le_uint(), t(at + 2, 2):le_uint()
    if len > 236 or len > n - 4 then return nil end
    return " code=" .. word(xfer_codes[code] or "code " .. code)
end

-- is_xfer reports whether private data is that of a file transfer, of n bytes at least.
local function is_xfer(t, at, has, n) return has >= n and t(at, 4):raw() == "cnxf" end

-- xfer_offer returns the fields of the private data of a request for a file transfer, or nil.
local function xfer_offer(t, at, n)
    if not is_xfer(t, at, n, 40) or t(at + 4, 1):uint() == 0 or u64(t, at + 16) >= 9223372036854775808 then return nil end
    local protocols, digest = t(at + 5, 1):uint(), t(at + 7, 1):uint()
    local name = digest == 0 and "sha256" or digest == 1 and "none" or nil
    if digest == 2 then
        local len = t(at + 36, 1):uint()
        if len == 0 or len > n - 40 then return nil end
        name = word(t(at + 40, len):raw())
    end
    if not name then return nil end
    local more = (math.floor(protocols / 4) % 2 == 1 and " stream=true" or "") .. (math.floor(protocols / 8) % 2 == 1 and " pull=true" or "")
    return string.format(" program=xfer file=%s basic=%s fast=%s digest=%s", dec64(t, at + 16), protocols % 2 == 1 and "true" or "false",
        math.floor(protocols / 2) % 2 == 1 and "true" or "false", name) .. more
end

local transfers = { [1] = "basic", [2] = "fast" }

-- xfer_answer returns those of an acceptance, and sets the program of the connection.
local function xfer_answer(t, at, n, conn)
    if not is_xfer(t, at, n, 16) then return nil end
    local transfer = transfers[t(at + 5, 1):uint()]
    if t(at + 4, 1):uint() ~= 1 or not transfer or t(at + 7, 1):uint() > 2 then return nil end
    programs[conn] = transfer
    return string.format(" program=xfer transfer=%s chunk=%s buffers=%d", transfer, dec(t(at + 8, 4):le_uint()), t(at + 12, 2):le_uint())
end

local function refusal(t, at, n)
    if is_xfer(t, at, n, 6) then
        local text = xfer_error(t, at + 6, n - 6)
        if text then return " program=xfer" .. text end
    end
    if n >= 3 and t(at, 1):uint() == 2 and t(at + 1, 1):uint() == 1 and t(at + 2, 1):uint() > 0 then
        local reasons = { "refused", '"connected already"' }
        return " program=rxm why=" .. (reasons[t(at + 2, 1):uint()] or ('"reason ' .. t(at + 2, 1):uint() .. '"'))
    end
    return private(t, at, n)
end

local packet_types = { [0] = "eager", "segment", '"rendezvous request"', '"rendezvous read done"', "atomic", '"atomic response"', "credit",
    '"rendezvous write data"', '"rendezvous write done"' }

local fast_names = { "OPEN", "LAYOUT", "CHUNK", "CREDIT", "END", "DONE", "FAILED", [16] = "WANT", [17] = "NOTE", [24] = "REQUEST", [25] = "ATTR" }
local operations = { "file", "list" }

-- fast returns the text of a message of the fast protocol, which has 24 bytes and its tail, or nil.
local function fast(t, n)
    local kind, len = t(0, 2):le_uint(), t(4, 4):le_uint()
    local name = fast_names[kind]
    local tailed = kind == 1 or kind >= 5 and kind ~= 25
    local longest = (kind == 16 or kind == 17) and 488 or 256
    if not name or tailed and (len > longest or len > n - 24) then return nil end
    if kind == 1 then
        local text = name .. " name=" .. word(len > 0 and t(24, len):raw() or "")
        if u64(t, 8) == 0 and t(16, 4):le_uint() == 0 then return text end
        return text .. " bytes=" .. dec64(t, 8) .. " word=" .. dec(t(16, 4):le_uint()) -- the wishes; in a pull, a part of the length of the head
    end
    if kind == 2 then
        return string.format("%s address=%s key=0x%x buffer=%s buffers=%s", name, hex64le(t, 8), t(16, 4):le_uint(), dec(len), dec(t(20, 4):le_uint()))
    end
    if kind == 3 then return name .. " index=" .. dec64(t, 8) .. " length=" .. dec(len) end
    if kind == 4 then return name .. " buffers=" .. dec(t(20, 4):le_uint()) end
    if kind == 7 then return name .. (xfer_error(t, 24, len) or "") end
    if kind == 16 then return name .. " ranges=" .. dec(t(20, 4):le_uint()) .. " last=" .. tostring(t(16, 4):le_uint() % 2 == 1) end
    if kind == 17 then return name .. " index=" .. dec64(t, 8) .. " length=" .. dec(len) .. " spared=" .. dec(t(16, 4):le_uint()) end
    if kind == 24 then
        local op = t(16, 4):le_uint()
        return string.format("%s operation=%s piece=%s path=%s", name, operations[op] or word("operation " .. dec(op)), dec(t(20, 4):le_uint()), word(len > 0 and t(24, len):raw() or ""))
    end
    if kind == 25 then return name .. " time=" .. dec64(t, 8) .. " mode=" .. dec(t(20, 4):le_uint()) end
    return name .. " file=" .. dec64(t, 8)
end

-- received returns the protocol and the text of the message in a SEND. here and back name the connection with its directions.
local function received(t, base, here, back, conn)
    local n = t:len()
    if n >= 64 and t(0, 1):uint() == 4 and t(1, 1):uint() <= 8 and t(32, 1):uint() == 2 and programs[conn] ~= "basic" then
        programs[conn] = "rxm"
        local kind = t(1, 1):uint()
        if kind == 6 then return "ofi+verbs", "credit credits=" .. dec64(t, 24) end
        if kind ~= 0 then return "ofi+verbs", "packet type=" .. packet_types[kind] .. " message=" .. dec64(t, 40) end
        if u64(t, 40) ~= n - 64 then return "ofi+verbs", 'malformed problem="a message of another size than its packet"' end
        if t(34, 1):uint() == 0 then return "ofi+verbs", request(t, 64, n - 64, dec64(t, 48), here) end
        if t(60, 4):le_uint() == 1 then return "ofi+verbs", request(t, 64, n - 64, dec(t(56, 4):le_uint()), here) end
        return "ofi+verbs", response(t, 64, n - 64, dec64(t, 56), back)
    end
    if n >= 24 and (programs[conn] == nil and n == 24 or programs[conn] == "basic") then
        local id = t(0, 4):le_int()
        local names = { "MR", "READY", "DONE", "FAILED" }
        local why = id == 4 and xfer_error(t, 8, n - 8)
        if names[id] and (id ~= 4 or why) then
            programs[conn] = "basic"
            local text = names[id] .. (why or "")
            if id == 1 then text = text .. " address=" .. hex64le(t, 8) .. " key=" .. string.format("0x%x", t(16, 4):le_uint()) end
            return "xfer", text
        end
    end
    if n >= 24 and programs[conn] == "fast" then
        local text = fast(t, n)
        if text then return "xfer", text end
    end
    return base, "send"
end

-- access returns the text of an access to remote memory.
local function access(operation, key, address, length)
    return operation .. string.format(" key=0x%x address=%s length=%s", key, address, dec(length))
end

-- ofi+tcp ---------------------------------------------------------------------------------------------------------------------------------

local hello_names = { [0] = "connect", [1] = "accept", [6] = "refuse" }

local function is_hello(t, at)
    local kind = t(at + 1, 1):uint()
    return t(at, 1):uint() == 3 and hello_names[kind] and t(at + 2, 2):uint() == 8
end

-- xnet returns the length and the text of the message at a place, or the length alone if more bytes are needed.
local function xnet(t, at, here, back)
    local left = t:len() - at
    if left < 16 then return nil end
    if is_hello(t, at) then
        if left < 40 then return 40 end
        local text = string.format("%s version=%d port=%d process=%s", hello_names[t(at + 1, 1):uint()], t(at + 32, 1):uint(), t(at + 34, 2):uint(),
            dec(t(at + 36, 4):uint()))
        if t(at + 33, 1):uint() ~= 0 then text = text .. " features=" .. t(at + 33, 1):uint() end
        if t(at + 31, 1):uint() == 1 then text = text .. " order=big-endian" end
        return 40, text
    end
    local op, flags, head, size = t(at + 1, 1):uint(), t(at + 2, 2):le_uint(), t(at + 6, 1):uint(), u64(t, at + 8)
    if op > 7 or head < 16 or head > 120 or size < head then return left, 'malformed problem="a header with an unknown operation or length"' end
    if left < size then return size end
    local off = at + 16
    local cq = flags % 2 == 1 and op ~= 3
    if cq then off = off + 8 end
    local n = size - head
    if op == 0 then
        if t(at + 4, 1):uint() == 2 then return size, "write-ack" end
        return size, request(t, at + head, n, cq and dec64(t, at + 16) or "0", here)
    elseif op == 1 then
        if t(off + 4, 4):le_uint() > 0 then return size, request(t, at + head, n, dec(t(off, 4):le_uint()), here) end
        return size, response(t, at + head, n, dec64(t, off), back)
    elseif op == 2 or op == 4 then
        local text = op == 2 and "read" or "write"
        for i = 0, t(at + 5, 1):uint() - 1 do
            text = text .. string.format(" key=%s offset=%s length=%s", hex64le(t, off + 24 * i + 16), hex64le(t, off + 24 * i), dec64(t, off + 24 * i + 8))
        end
        return size, text
    elseif op == 3 then
        return size, "read-data length=" .. dec(n)
    end
    local names = { [5] = "rendezvous-announce", [6] = "rendezvous-clear", [7] = "rendezvous-data" }
    return size, names[op]
end

-- iWARP -----------------------------------------------------------------------------------------------------------------------------------

local function known_cause(layer, kind, code)
    if layer == 0 then return kind == 0 or kind == 1 and (code <= 4 or code == 9 or code == 255) or kind == 2 and (code >= 5 and code <= 9 or code == 255) end
    if layer == 1 then return kind == 0 and code == 0 or kind == 1 and code <= 4 or kind == 2 and code >= 1 and code <= 6 end
    return layer == 2 and kind == 0 and code >= 1 and code <= 4
end

-- segment returns the protocol and the text of a DDP segment, or nothing if its message goes on.
local function segment(t, state, side, here, back, conn)
    local n = t:len()
    local control, ulp = t(0, 1):uint(), n > 1 and t(1, 1):uint() or 0
    local tagged, last = control >= 128, math.floor(control / 64) % 2 == 1
    local head = tagged and 14 or 18
    if n < head or control % 4 ~= 1 then return "iwarp", 'malformed problem="' .. n .. ' bytes that are no segment of DDP"' end
    local op = ulp % 16
    local s = state[side]
    if tagged then
        if not s.total then s.total, s.key, s.address = 0, t(2, 4):uint(), hex64be(t, 6) end
        s.total = s.total + n - head
        if not last then return nil end
        local total = s.total
        s.total = nil
        if op == 0 then return "iwarp", access("write", s.key, s.address, total) end
        return "iwarp", "read-data length=" .. dec(total)
    end
    if op >= 3 and op <= 6 then
        local part = t(head, n - head):bytes()
        if s.send then s.send:append(part) else s.send = part end
        if not last then return nil end
        local whole = s.send
        s.send = nil
        local protocol, text = "iwarp", "send"
        if whole:len() > 0 then protocol, text = received(whole:tvb("SEND"), "iwarp", here, back, conn) end
        if op == 4 or op == 6 then text = text .. string.format(" invalidate=0x%x", t(2, 4):uint()) end
        return protocol, text
    elseif op == 1 and n - head >= 28 then
        return "iwarp", access("read", t(head + 16, 4):uint(), hex64be(t, head + 20), t(head + 12, 4):uint())
    elseif op == 7 and n - head >= 4 then
        local a, code = t(head, 1):uint(), t(head + 1, 1):uint()
        local layer, kind = math.floor(a / 16), a % 16
        if not known_cause(layer, kind, code) and known_cause(kind, layer, code) then layer, kind = kind, layer end
        return "iwarp", string.format("terminate layer=%d type=%d code=%d", layer, kind, code)
    elseif (op == 8 or op == 9) and n - head >= 8 then
        return "iwarp", "immediate immediate=" .. dec(t(head, 4):uint())
    elseif op == 10 and n - head >= 52 then
        return "iwarp", string.format("atomic key=0x%x address=%s", t(head + 8, 4):uint(), hex64be(t, head + 12))
    elseif op == 11 then
        return "iwarp", "atomic-result"
    end
    return "iwarp", "malformed"
end

-- mpa returns the length of the start-up frame or FPDU at a place, its protocol and its text.
local function mpa(t, at, state, side, here, back, conn)
    local left = t:len() - at
    local s = state[side]
    if not s.framed then
        if left < 20 then return nil end
        local flags, n = t(at + 16, 1):uint(), t(at + 18, 2):uint()
        if left < 20 + n then return 20 + n end
        s.framed = true
        local has = function(b) return math.floor(flags / b) % 2 == 1 end
        if has(64) then state.crc = true end
        local text = string.format(" revision=%d crc=%s", t(at + 17, 1):uint(), has(64) and "true" or "false")
        local data, len = at + 20, n
        if has(16) and n >= 4 and t(at + 17, 1):uint() >= 2 then
            text = text .. string.format(" ird=%d ord=%d", t(data, 2):uint() % 16384, t(data + 2, 2):uint() % 16384)
            data, len = data + 4, n - 4
        end
        local reply = t(at, 10):string() == "MPA ID Rep"
        local operation = "connect"
        if reply and has(32) then
            operation = "refuse"
            text = text .. refusal(t, data, len)
        elseif reply then
            operation = "accept"
            local found = acceptance(t, data, len)
            if found then programs[conn] = "rxm" end
            text = text .. (found or xfer_answer(t, data, len, conn) or private(t, data, len))
        else
            text = text .. (offer(t, data, len) or xfer_offer(t, data, len) or private(t, data, len))
        end
        if has(128) then
            text = text .. ' problem="the sender demands markers, which cannot be read"'
            state[1 - side].dead = true
        end
        return 20 + n, "iwarp", operation .. text
    end
    if left < 2 then return nil end
    local size = t(at, 2):uint()
    local all = 2 + size + (4 - (2 + size) % 4) % 4 + 4
    if size == 0 then
        s.dead = true
        return left, "iwarp", 'malformed problem="an FPDU without contents"'
    end
    if left < all then return all end
    if state.crc and crc32c(t(at, all):tvb(), all - 4) ~= t(at + all - 4, 4):le_uint() then
        return all, "iwarp", 'malformed problem="the checksum of an FPDU is wrong"'
    end
    return all, segment(t(at + 2, size):tvb(), state, side, here, back, conn)
end

-- TCP -------------------------------------------------------------------------------------------------------------------------------------

-- stream_of returns the state of the TCP connection of a packet, and the side that has sent it.
local function stream_of(pinfo)
    local number = tcp_stream().value
    local state = streams[number]
    if not state then
        state = { [0] = {}, [1] = {}, first = tostring(pinfo.src) .. pinfo.src_port }
        streams[number] = state
    end
    local side = state.first == tostring(pinfo.src) .. pinfo.src_port and 0 or 1
    return state, side, "t" .. number
end

-- decode decodes all messages in the bytes of a connection that TCP has put together.
local function decode(t, pinfo, tree)
    local state, side, conn = stream_of(pinfo)
    local here, back = conn .. side, conn .. (1 - side)
    local at = 0
    while at < t:len() do
        if state[side].dead then return t:len() end
        -- A later pass finds the results of the first one by the packet and the bytes.
        local seen = pinfo.number .. ":" .. at .. ":" .. t(at, math.min(48, t:len() - at)):bytes():tohex()
        local r = pinfo.visited and done[seen]
        if not r then
            local n, protocol, text
            if state.proto == "xnet" then
                n, text = xnet(t, at, here, back)
                protocol = "ofi+tcp"
            else
                n, protocol, text = mpa(t, at, state, side, here, back, conn)
            end
            r = { n, protocol, text }
            if n and n <= t:len() - at then done[seen] = r end
        end
        local n = r[1]
        if not n or n > t:len() - at then
            pinfo.desegment_offset = at
            pinfo.desegment_len = n and n - (t:len() - at) or DESEGMENT_ONE_MORE_SEGMENT
            return t:len()
        end
        if r[3] then
            pinfo.cols.protocol = r[2]
            pinfo.cols.info = r[3]
            show(tree, t(at, n), r[2], r[3])
        end
        at = at + n
    end
    return t:len()
end

function p.dissector(t, pinfo, tree) return decode(t, pinfo, tree) end

-- A connection is decoded if it begins with a connection message of ofi+tcp or with a start-up frame of MPA.
local function recognized(t, pinfo, tree)
    if t:len() < 16 then return false end
    local state = stream_of(pinfo)
    if not state.proto then
        if is_hello(t, 0) then
            state.proto = "xnet"
        elseif t(0, 9):string() == "MPA ID Re" then
            state.proto = "mpa"
        else
            return false
        end
    end
    pinfo.conversation = p
    decode(t, pinfo, tree)
    return true
end
p:register_heuristic("tcp", recognized)

-- RoCE ------------------------------------------------------------------------------------------------------------------------------------

local roce = Proto("cinnabar_roce", "cinnabar: RoCEv2")
local udp = DissectorTable.get("udp.port")
local before = udp:get_dissector(4791)

local kinds = { [0] = "send", "send", "send", "send", "send", "send", "write", "write", "write", "write", "write", "write", "read", "data", "data", "data",
    "data", "ack", "atomic-result", "atomic", "atomic", nil, "send", "send" }
local firsts = { [0] = true, [4] = true, [5] = true, [6] = true, [10] = true, [11] = true, [12] = true, [13] = true, [16] = true, [23] = true }
local lasts = { [2] = true, [3] = true, [4] = true, [5] = true, [8] = true, [9] = true, [10] = true, [11] = true, [12] = true, [15] = true, [16] = true,
    [22] = true, [23] = true }
local naks = { [0] = '"sequence error"', '"invalid request"', '"remote access error"', '"remote operation error"', '"invalid RD request"' }

-- manage returns the text of a datagram of connection management.
local function manage(t, src, dst)
    local at = t(16, 2):uint()
    local body = 24
    if at == 0x10 then
        local qp = t(body + 32, 3):uint()
        asked[src .. ":" .. t(body, 4):uint()] = { src = src, qp = qp }
        return string.format("connect service-port=%d qp=%d", t(body + 14, 2):uint(), qp) .. (offer(t, body + 176, 56) or xfer_offer(t, body + 176, 56) or private(t, body + 176, 56))
    elseif at == 0x13 then
        local qp = t(body + 12, 3):uint()
        local from = asked[dst .. ":" .. t(body + 4, 4):uint()]
        local conn = src .. "/" .. qp .. "/" .. dst .. "/" .. (from and from.qp or "")
        local requester, other = { conn = conn, side = 0 }, { conn = conn, side = 1 }
        if from then pairs_of[dst .. "/" .. from.qp] = other end -- packets for the requester come from the other side
        pairs_of[src .. "/" .. qp] = requester
        local found = acceptance(t, body + 36, 196)
        if found then programs[conn] = "rxm" end
        return "accept qp=" .. qp .. (found or xfer_answer(t, body + 36, 196, conn) or private(t, body + 36, 196))
    elseif at == 0x12 then
        return "refuse reason=" .. t(body + 10, 2):uint() .. refusal(t, body + 84, 148)
    end
    local names = { [0x11] = "received", [0x14] = "ready", [0x15] = "disconnect", [0x16] = "disconnected" }
    return names[at] or ("management attribute=" .. at)
end

-- roce_packet returns the protocol and the text of the message that ends in a packet, or nothing.
local function roce_packet(t, src, dst)
    if t:len() < 16 then return nil end
    local op, pad = t(0, 1):uint(), math.floor(t(1, 1):uint() / 16) % 4
    local qp, psn = t(5, 3):uint(), t(9, 3):uint()
    local at, stop = 12, t:len() - 4 - pad
    if stop < at then return "roce", 'malformed problem="a packet of RoCE that is shorter than its pad"' end
    if op == 0x64 and qp == 1 then
        if stop - at < 8 + 256 or t(at + 9, 1):uint() ~= 7 then return nil end
        return "roce", manage(t(at + 8, 256):tvb(), src, dst)
    end
    local kind = op <= 23 and kinds[op] or nil
    if not kind then return nil end
    if kind == "ack" then
        local syndrome = t(at, 1):uint()
        local class = math.floor(syndrome / 32) % 4
        if class == 1 then return "roce", 'nak why="receiver not ready"' end
        if class == 3 then return "roce", "nak why=" .. (naks[syndrome % 32] or ('"code ' .. syndrome % 32 .. '"')) end
        return nil
    elseif kind == "atomic-result" then
        return "roce", kind
    elseif kind == "atomic" then
        return "roce", string.format("atomic key=0x%x address=%s swap=%s", t(at + 8, 4):uint(), hex64be(t, at), op == 0x13 and "true" or "false")
    end
    local q = pairs_of[dst .. "/" .. qp]
    if not q then
        local low, high = src, dst
        if dst < src then low, high = dst, src end
        q = { conn = low .. "-" .. high, side = src == low and 0 or 1 }
        pairs_of[dst .. "/" .. qp] = q
    end
    local name = kind == "data" and "answers" or "requests"
    local f = q[name] or {}
    q[name] = f
    local ahead = (psn - (f.psn or psn - 1)) % 16777216
    if f.psn and (ahead == 0 or ahead >= 8388608) then return nil end -- it was sent again
    f.psn = psn
    local first, last = firsts[op], lasts[op]
    if first then
        f.open, f.send, f.total = true, nil, 0
    elseif not f.open or ahead > 1 then
        f.open = false
        return nil
    end
    if kind == "read" or first and kind == "write" then
        f.address, f.key, f.length = hex64be(t, at), t(at + 8, 4):uint(), t(at + 12, 4):uint()
        at = at + 16
    end
    if kind == "data" and op ~= 14 then at = at + 4 end
    local extra = ""
    if op == 3 or op == 5 or op == 9 or op == 11 then
        extra = " immediate=" .. dec(t(at, 4):uint())
        at = at + 4
    elseif op >= 22 then
        extra = string.format(" invalidate=0x%x", t(at, 4):uint())
        at = at + 4
    end
    f.total = f.total + stop - at
    if kind == "send" and stop > at then
        local part = t(at, stop - at):bytes()
        if f.send then f.send:append(part) else f.send = part end
    end
    if not last then return nil end
    f.open = false
    if kind == "send" then
        local protocol, text = "roce", "send"
        if f.send then protocol, text = received(f.send:tvb("SEND"), "roce", q.conn .. q.side, q.conn .. (1 - q.side), q.conn) end
        return protocol, text .. extra
    elseif kind == "write" then
        return "roce", access("write", f.key, f.address, f.total) .. extra
    elseif kind == "read" then
        return "roce", access("read", f.key, f.address, f.length)
    end
    return "roce", "read-data length=" .. dec(f.total)
end

function roce.dissector(t, pinfo, tree)
    local src, dst = tostring(pinfo.src), tostring(pinfo.dst) -- Wireshark's own dissector overwrites them
    if before then before:call(t, pinfo, tree) end
    local r = done["r" .. pinfo.number]
    if not r then
        local protocol, text = roce_packet(t, src, dst)
        r = { protocol, text }
        done["r" .. pinfo.number] = r
    end
    if r[2] then show(tree, t(), r[1], r[2]) end
    return t:len()
end
udp:add(4791, roce)
