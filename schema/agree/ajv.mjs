// Judges every example with ajv, from the plain files, from the bundles, and from the bundled files of one message,
// in draft 2020-12 and in draft 07 (SCHEMA-2, SCHEMA-3, SCHEMA-4).
//
// usage: node ajv.mjs <the schema folder> <what chat-schema exported> <a folder with messages and this crate's reports>,
// from a folder in which ajv and ajv-formats are installed
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "here.js"));
const { default: Ajv2020 } = require("ajv/dist/2020");
const { default: Ajv07 } = require("ajv");
const { default: addFormats } = require("ajv-formats");

const [folder, exported, mutants] = process.argv.slice(2);
const json = (path) => JSON.parse(readFileSync(path, "utf8"));
const read = (name) => json(join(folder, name));
const names = ["message"];
for (const family of ["c2s", "s2c", "s2s"]) {
  for (const file of readdirSync(join(folder, family)).sort()) {
    names.push(`${family}/${file.replace(/\.schema\.json$/, "")}`);
  }
}

// Strict: an unknown keyword or format is an error. The three that are off forbid what the standard
// allows and the files use: constraints of members whose type the envelope gives.
const made = (Ajv, schemas) => {
  const ajv = new Ajv({ allErrors: true, strict: true, strictTypes: false, strictTuples: false, strictRequired: false });
  addFormats(ajv);
  ajv.addSchema(schemas); // checks each against the meta-schema
  return ajv;
};

// Every way to the schemas: a name, and from the name of a message to what judges it.
const files = names.map((name) => read(`${name}.schema.json`));
const bundle = json(join(exported, "schema/bundle.schema.json"));
const flat = json(join(exported, "schema/draft-07/bundle.schema.json"));
const [leaves, compound, old] = [made(Ajv2020, files), made(Ajv2020, bundle), made(Ajv07, flat)];
const one = (Ajv, folder) => (name) => {
  const document = json(join(exported, folder, `${name}.schema.json`));
  return made(Ajv, document).getSchema(document.$id);
};
const ways = {
  files: (name) => leaves.getSchema(files[names.indexOf(name)].$id),
  "the bundle by $id": (name) => compound.getSchema(new URL(`${name}.schema.json`, bundle.$id).href),
  "the bundle by pointer": (name) => compound.getSchema(`${bundle.$id}#/$defs/${name.replace("/", ".")}`),
  "the bundle of draft 07": (name) => old.getSchema(`${flat.$id}#/definitions/${name.replace("/", ".")}`),
  "one file a message": one(Ajv2020, "bundled"),
  "one file a message of draft 07": one(Ajv07, "schema/draft-07"),
};

// ajv also reports what each item lacked for `contains`; the violation itself is at the array.
const violations = (validate) => validate.errors.filter((error) => !/\/contains\//.test(error.schemaPath));
const pathsOf = (errors) => [...new Set(errors.map((error) => error.instancePath))].sort();

const faults = [];
let fewest = Infinity;
for (const [way, find] of Object.entries(ways)) {
  let judged = 0;
  const validators = new Map(names.map((name) => [name, find(name)]));
  for (const [name, validate] of validators) {
    const at = `${way}: ${name}`;
    const examples = read(`examples/${name}.json`);
    for (const { why, message } of examples.valid) {
      judged += 1;
      if (!validate(message)) faults.push(`${at}: ${why}: refused: ${JSON.stringify(validate.errors)}`);
    }
    for (const { why, message, path, keyword } of examples.invalid) {
      judged += 1;
      if (validate(message)) {
        faults.push(`${at}: ${why}: accepted`);
        continue;
      }
      const errors = violations(validate);
      const paths = pathsOf(errors);
      if (paths.length !== 1 || paths[0] !== path) {
        faults.push(`${at}: ${why}: fails at ${JSON.stringify(paths)}, not at ${JSON.stringify(path)}`);
      }
      // Draft 07 has another word for it.
      const known = way.endsWith("07") && keyword === "dependentRequired" ? "dependencies" : keyword;
      if (!errors.some((error) => error.keyword === known)) {
        faults.push(`${at}: ${why}: fails by ${errors.map((error) => error.keyword)}, not by ${known}`);
      }
    }
  }

  const lines = (name) => readFileSync(join(mutants, name), "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
  let compared = 0;
  for (const family of ["c2s", "s2c", "s2s"]) {
    const reports = lines(`${family}.reports`);
    lines(family).forEach((message, index) => {
      compared += 1;
      const validate = validators.get(`${family}/${message.command.toLowerCase()}`);
      const ours = pathsOf(validate(message) ? [] : violations(validate));
      const theirs = [...new Set((reports[index].violations ?? []).map((violation) => violation.instance_path))].sort();
      if (JSON.stringify(ours) !== JSON.stringify(theirs)) {
        faults.push(`${way}: ${JSON.stringify(message)}: fails at ${JSON.stringify(ours)}, for this crate at ${JSON.stringify(theirs)}`);
      }
    });
  }
  fewest = Math.min(fewest, judged, compared);
  console.log(`ajv, ${way}: ${judged} examples, ${compared} messages compared`);
}
faults.slice(0, 20).forEach((fault) => console.error(fault));
console.log(`ajv: ${faults.length} disagreements`);
process.exit(faults.length > 0 || fewest < 600 ? 1 : 0);
