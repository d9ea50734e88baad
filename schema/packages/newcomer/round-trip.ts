// Reads every valid example as a typed message, takes it apart by its command, and puts it together again.
import { readFileSync, readdirSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { bundle, idOf, type C2S, type S2C, type S2S } from "weir-schema";

type Family = "c2s" | "s2c" | "s2s";
const ajv = new Ajv2020({ allErrors: true, strictTypes: false, strictTuples: false, strictRequired: false });
addFormats.default(ajv);
ajv.addSchema(bundle);

function again(message: C2S | S2C | S2S): C2S | S2C | S2S {
  switch (message.command) {
    case "NICK": {
      const { params: [nick], ...rest } = message;
      return { ...rest, params: [nick] };
    }
    case "KICK": {
      const { params: [nick], body, ...rest } = message;
      return body === undefined ? { ...rest, params: [nick] } : { ...rest, params: [nick], body };
    }
    case "353": {
      const { params: [kind, channel], body, ...rest } = message;
      const kinds: Record<"=" | "*" | "@", string> = { "=": "public", "*": "private", "@": "secret" };
      if (!kinds[kind]) throw new Error(kind);
      return { ...rest, params: [kind, channel], body: [...body] };
    }
    case "PUBKEY": {
      const { body: { alg, key, ...more }, ...rest } = message;
      return { ...rest, body: { alg, key, ...more } };
    }
    case "SYNC": {
      const { body: { part, last, ...more }, ...rest } = message;
      return { ...rest, body: { part: part + 0, last, ...more } };
    }
    case "RELAY": {
      const { body: { message: inner, ...more }, ...rest } = message;
      return { ...rest, body: { message: { ...inner }, ...more } };
    }
    default:
      return { ...message };
  }
}

let count = 0;
for (const family of ["c2s", "s2c", "s2s"] satisfies Family[]) {
  const folder = `node_modules/weir-schema/examples/${family}`;
  for (const file of readdirSync(folder)) {
    for (const { message, why } of JSON.parse(readFileSync(`${folder}/${file}`, "utf8")).valid) {
      const validate = ajv.getSchema<C2S | S2C | S2S>(idOf(family, message.command));
      if (!validate?.(message)) throw new Error(`${family}/${file}: ${why}: refused`);
      const back = JSON.parse(JSON.stringify(again(message)));
      if (!isDeepStrictEqual(back, message)) throw new Error(`${family}/${file}: ${why}: ${JSON.stringify(back)}`);
      count += 1;
    }
  }
}
console.log(`typescript: ${count} messages read and written again`);
if (count < 140) throw new Error("too few");
