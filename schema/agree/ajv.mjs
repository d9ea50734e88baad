// Judges every example with ajv, from the plain files alone (SCHEMA-3, SCHEMA-4).
//
// usage: node ajv.mjs <the schema folder> [<a folder with messages and this crate's reports on them>],
// from a folder in which ajv and ajv-formats are installed
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "here.js"));
const { default: Ajv } = require("ajv/dist/2020");
const { default: addFormats } = require("ajv-formats");

const folder = process.argv[2];
const read = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));
const names = ["message"];
for (const family of ["c2s", "s2c", "s2s"]) {
  for (const file of readdirSync(join(folder, family)).sort()) {
    names.push(`${family}/${file.replace(/\.schema\.json$/, "")}`);
  }
}

// Strict: an unknown keyword or format is an error. The three that are off forbid what the standard
// allows and the files use: constraints of members whose type the envelope gives.
const ajv = new Ajv({ allErrors: true, strict: true, strictTypes: false, strictTuples: false, strictRequired: false });
addFormats(ajv);
const schemas = names.map((name) => read(`${name}.schema.json`));
ajv.addSchema(schemas); // checks each against the meta-schema

// ajv also reports what each item lacked for `contains`; the violation itself is at the array.
const violations = (validate) => validate.errors.filter((error) => !/\/contains\//.test(error.schemaPath));
const pathsOf = (errors) => [...new Set(errors.map((error) => error.instancePath))].sort();

let judged = 0;
const faults = [];
names.forEach((name, index) => {
  const validate = ajv.getSchema(schemas[index].$id);
  const examples = read(`examples/${name}.json`);
  for (const { why, message } of examples.valid) {
    judged += 1;
    if (!validate(message)) faults.push(`${name}: ${why}: refused: ${ajv.errorsText(validate.errors)}`);
  }
  for (const { why, message, path, keyword } of examples.invalid) {
    judged += 1;
    if (validate(message)) {
      faults.push(`${name}: ${why}: accepted`);
      continue;
    }
    const errors = violations(validate);
    const paths = pathsOf(errors);
    if (paths.length !== 1 || paths[0] !== path) {
      faults.push(`${name}: ${why}: fails at ${JSON.stringify(paths)}, not at ${JSON.stringify(path)}`);
    }
    if (!errors.some((error) => error.keyword === keyword)) {
      faults.push(`${name}: ${why}: fails by ${errors.map((error) => error.keyword)}, not by ${keyword}`);
    }
  }
});
console.log(`ajv: ${judged} examples of ${names.length} schemas`);

if (process.argv[3]) {
  const lines = (name) => readFileSync(join(process.argv[3], name), "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
  let compared = 0;
  for (const family of ["c2s", "s2c", "s2s"]) {
    const reports = lines(`${family}.reports`);
    lines(family).forEach((message, index) => {
      compared += 1;
      const validate = ajv.getSchema(schemas[names.indexOf(`${family}/${message.command.toLowerCase()}`)].$id);
      const ours = pathsOf(validate(message) ? [] : violations(validate));
      const theirs = [...new Set((reports[index].violations ?? []).map((violation) => violation.instance_path))].sort();
      if (JSON.stringify(ours) !== JSON.stringify(theirs)) {
        faults.push(`${JSON.stringify(message)}: fails at ${JSON.stringify(ours)}, for this crate at ${JSON.stringify(theirs)}`);
      }
    });
  }
  judged = Math.min(judged, compared);
  console.log(`ajv: ${compared} messages compared`);
}
faults.forEach((fault) => console.error(fault));
console.log(`ajv: ${faults.length} disagreements`);
process.exit(faults.length > 0 || judged < 400 ? 1 : 0);
