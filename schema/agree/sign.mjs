// Signatures and the canonical form, made and checked without the crate (SCHEMA-6, SCHEMA-7).
//
// usage: node sign.mjs make <folder> <the schema folder>   prints messages, and signs them as node-signed
//        node sign.mjs check <folder>                      judges what the crate made of them
import assert from "node:assert/strict";
import { createHash, createPublicKey, generateKeyPairSync, sign, verify } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [mode, folder, schema] = process.argv.slice(2);
const lines = (name) => readFileSync(join(folder, name), "utf8").trimEnd().split("\n");

// RFC 8785: JavaScript's own numbers and strings, members by UTF-16 code units, which is sort()'s order.
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

// RFC 7638 over the members that RFC 8037 names.
const thumbprint = ({ crv, kty, x }) => createHash("sha256").update(canonical({ crv, kty, x })).digest("base64url");

function signedBytes(message) {
  const { sig, ...meta } = message.meta;
  return Buffer.from(canonical({ ...message, meta }));
}

if (mode === "make") {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const jwk = publicKey.export({ format: "jwk" });
  writeFileSync(join(folder, "node.pub"), JSON.stringify(jwk));
  const signed = [];
  for (const family of ["c2s", "s2c", "s2s"]) {
    for (const file of readdirSync(join(schema, "examples", family)).sort()) {
      for (const { why, message } of JSON.parse(readFileSync(join(schema, "examples", family, file), "utf8")).valid) {
        Object.assign(message, { id: "0f8fad5b-d9cb-469f-a165-70867728950e", ts: "2026-03-01T12:00:00Z" });
        message.from ??= "alice";
        message.meta = { why, "\ufb33": 1e21, "\u{1f600}": 1e-7, "\u0080": [-0, 0.1 + 0.2, 333333333.33333329, "\u2028\u0007\"\\"] };
        console.log(JSON.stringify(message));
        Object.assign(message.meta, { alg: "ed25519", kid: thumbprint(jwk) });
        message.meta.sig = sign(null, signedBytes(message), privateKey).toString("base64url");
        signed.push(JSON.stringify(message));
      }
    }
  }
  writeFileSync(join(folder, "node-signed"), signed.join("\n") + "\n");
} else {
  const jwk = JSON.parse(lines("crate.pub")[0]);
  assert.equal(jwk.kid, thumbprint(jwk));
  const key = createPublicKey({ key: jwk, format: "jwk" });
  const [messages, forms, signed] = [lines("messages"), lines("canonical"), lines("signed")];
  assert.ok(messages.length > 80);
  assert.equal(forms.length, messages.length);
  assert.equal(signed.length, messages.length);
  messages.forEach((message, index) => {
    assert.equal(forms[index], canonical(JSON.parse(message)));
    const { meta, ...rest } = JSON.parse(signed[index]);
    assert.equal(meta.alg, "ed25519");
    assert.equal(meta.kid, jwk.kid);
    const bytes = signedBytes({ ...rest, meta });
    assert.ok(verify(null, bytes, key, Buffer.from(meta.sig, "base64url")), message);
    bytes[bytes.length - 3] ^= 1;
    assert.ok(!verify(null, bytes, key, Buffer.from(meta.sig, "base64url")), message);
  });
}
