//! What wrk sends, as scripts in Lua.

/// A script for a POST of so many bytes.
macro_rules! body {
    ($count:literal) => {
        concat!(
            "wrk.method = 'POST'\nwrk.body = string.rep('x', ",
            $count,
            ")\n"
        )
    };
}

/// One for so many chunks of so many bytes, which wrk cannot make by itself.
macro_rules! chunks {
    ($count:literal, $size:literal) => {
        concat!(
            "local text = 'POST /upload HTTP/1.1\\r\\nHost: a\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n'\n",
            "text = text .. string.rep(string.format('%x\\r\\n', ", $size, ") .. string.rep('x', ", $size,
            ") .. '\\r\\n', ", $count, ") .. '0\\r\\n\\r\\n'\n",
            "function request() return text end\n"
        )
    };
}
pub(crate) use {body, chunks};

/// A head of the size a browser sends: about 1.2 kB in 17 fields.
pub(crate) const BROWSER: &str = r#"
wrk.headers['User-Agent'] = 'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36'
wrk.headers['Accept'] = 'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7'
wrk.headers['Accept-Encoding'] = 'gzip, deflate, br, zstd'
wrk.headers['Accept-Language'] = 'de-DE,de;q=0.9,en-US;q=0.8,en;q=0.7'
wrk.headers['Cache-Control'] = 'max-age=0'
wrk.headers['Cookie'] = '_ga=GA1.2.1234567890.1700000000; _gid=GA1.2.987654321.1700000000; session=' .. string.rep('0123456789abcdef', 16) .. '; theme=dark; consent=all'
wrk.headers['DNT'] = '1'
wrk.headers['Priority'] = 'u=0, i'
wrk.headers['Referer'] = 'https://www.example.org/catalogue/shoes/running?page=3&sort=price&colour=blue'
wrk.headers['Sec-Ch-Ua'] = '"Chromium";v="131", "Not_A Brand";v="24", "Google Chrome";v="131"'
wrk.headers['Sec-Ch-Ua-Mobile'] = '?0'
wrk.headers['Sec-Ch-Ua-Platform'] = '"Linux"'
wrk.headers['Sec-Fetch-Dest'] = 'document'
wrk.headers['Sec-Fetch-Mode'] = 'navigate'
wrk.headers['Sec-Fetch-Site'] = 'same-origin'
wrk.headers['Sec-Fetch-User'] = '?1'
wrk.headers['Upgrade-Insecure-Requests'] = '1'
"#;

/// So many clients in turn, whose addresses are made of their `number` by an expression in Lua. The
/// requests are made beforehand, so that the generator's own work stays small.
macro_rules! clients {
    ($count:literal, $address:literal) => {
        concat!(
            "local requests, at, count = {}, 0, ",
            $count,
            "\nfunction init(arguments)\n  for number = 0, count - 1 do\n    wrk.headers['X-Forwarded-For'] = ",
            $address,
            r#"
    requests[number] = wrk.format()
  end
end
function request()
  at = (at + 1) % count
  return requests[at]
end
"#
        )
    };
}

/// 20,000 clients in turn: those of the full state files.
pub(crate) const CLIENTS: &str = clients!(
    "20000",
    "string.format('10.200.%d.%d', number / 256, number % 256)"
);

/// 100 clients in turn.
pub(crate) const FEW_CLIENTS: &str = clients!("100", "string.format('100.64.0.%d', number)");

/// 1,000,000 clients in turn: 50 times as many as weir keeps.
pub(crate) const MANY_CLIENTS: &str = clients!(
    "1000000",
    "string.format('100.%d.%d.%d', 64 + number / 65536, number / 256 % 256, number % 256)"
);

/// The addresses of 64.0.0.0/6 by number, in an order that leaps from network to network, as
/// visitors come; the step is odd, so that it meets them all. The lookup databases know them, and
/// they are public: private ones are never looked up.
macro_rules! address {
    () => {
        r#"math.randomseed(os.time())
local first = math.random(0, 2^26 - 1)
local function address(number)
  local n = (first + number * 2654435) % 2^26
  return string.format('%d.%d.%d.%d', 64 + math.floor(n / 2^24), math.floor(n / 2^16) % 256, math.floor(n / 2^8) % 256, n % 256)
end
"#
    };
}

/// 20,000 clients in turn that were not there in an earlier run of the same process.
pub(crate) const FRESH: &str = concat!(address!(), clients!("20000", "address(number)"));

/// Each request is of a client of its own, for 67 million of them.
pub(crate) const ENDLESS: &str = concat!(
    address!(),
    r#"
local head, tail, at = '', '', 0
function init(arguments)
  wrk.headers['X-Forwarded-For'] = 'CLIENT'
  head, tail = string.match(wrk.format(), '^(.*)CLIENT(.*)$')
end
function request()
  at = at + 1
  return head .. address(at) .. tail
end
"#
);
