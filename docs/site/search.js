// Scores of search results: first a term, class or option whose whole name is searched for, then the guides on a subject
// that is searched for, the other guides, names with the words in them, those of abstract classes last, other pages.
const SUBJECTS = {
  README: "ksim start",
  "docs/running": "run install train watch view video evaluate evaluation export resume dashboard engine notebook",
  "docs/notebooks/first_steps": "notebook jupyter colab first",
  "docs/own_robot": "own robot mjcf urdf xml joint actuator motor foot feet",
  "docs/own_task": "own task reward observation command velocity termination reset event curriculum term logger callback",
  "docs/own_environment": "own environment simulator gymnax",
  "docs/own_algorithm": "own algorithm learner",
  "docs/migrating": "brax playground rsl_rl mjlab isaac skrl migrate migrating",
  "docs/tuning": "tune tuning learn learning fall reward",
  "docs/algorithms": "algorithm symmetry motion tracking teacher student distill amp reppo",
  "docs/learning": "learn learning humanoid quadruped example curve",
  "docs/robots": "robot unitree anymal gallery",
  "docs/deploying": "deploy deploying export onnx policy hardware cpp",
  DISTRIBUTED_TRAINING: "distributed training multiple several device devices gpu gpus tpu process scaling",
  "docs/clusters": "cluster slurm mpi kubernetes torchrun launch launcher machine",
  "docs/reliability": "reliability checkpoint resume crash stop fault kill nan",
};
const GUIDES = Object.keys(SUBJECTS);
const OPTIONS = "docs/options";
const REFERENCE = "docs/site/api/";
const WHOLE_NAME = 16; // the score of an object whose name is the query

function onSubject(words, docname) {
  const subjects = SUBJECTS[docname].split(" ");
  return words.filter((word) => subjects.some((subject) => word === subject || word === `${subject}s`)).length;
}

var Scorer = {
  score: ([docname, title, , , score, , kind]) => {
    const words = new URLSearchParams(window.location.search).get("q").toLowerCase().split(/\W+/);
    if (kind === "object") return score + (score >= WHOLE_NAME ? 1000 : title.includes(".Abstract") ? 41 : 50);
    if (docname === OPTIONS && words.some((word) => word.includes("_"))) return score + 500;
    if (!GUIDES.includes(docname)) return score + (docname.startsWith(REFERENCE) ? 40 : 30);
    const subjects = onSubject(words, docname);
    return 60 + 2 * score + (subjects ? 60 + 20 * subjects : 0) - GUIDES.indexOf(docname) / GUIDES.length;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
