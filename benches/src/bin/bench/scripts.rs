//! What wrk sends, as scripts in Lua; the functions are those of `load.rs`.

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

/// 20,000 clients in turn: those of the full state files.
pub(crate) const CLIENTS: &str =
    "clients(20000, function(n) return string.format('10.200.%d.%d', n / 256, n % 256) end)";

/// 100 clients in turn.
pub(crate) const FEW_CLIENTS: &str =
    "clients(100, function(n) return string.format('100.64.0.%d', n) end)";

/// 1,000,000 clients in turn: 50 times as many as weir keeps.
pub(crate) const MANY_CLIENTS: &str = "clients(1000000, function(n)
  return string.format('100.%d.%d.%d', 64 + n / 65536, n / 256 % 256, n % 256)
end)";

/// 20,000 clients in turn that were not there in an earlier run of the same process.
pub(crate) const FRESH: &str = "clients(20000, fresh)";
