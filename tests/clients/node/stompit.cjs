// stompit over TCP. node stompit.cjs PORT; prints what it saw, a line each.
const stompit = require("stompit");

const port = Number(process.argv[2]);
const say = (...words) => console.log(words.join(" "));
const fail = (error) => {
  say("failed", error.message);
  process.exit(1);
};
const servers = new stompit.ConnectFailover(
  // Nobody listens at the first.
  [{ host: "127.0.0.1", port: 1 }, { host: "127.0.0.1", port, connectHeaders: { host: "/", "heart-beat": "1000,1000" } }],
  { initialReconnectDelay: 10, maxReconnects: 5, randomize: false },
);

servers.connect((error, client) => {
  if (error) return fail(error);
  say("connected");
  const destination = "/topic/stompit";
  client.subscribe({ destination, ack: "client-individual" }, (error, message) => {
    if (error) return fail(error);
    message.readString("utf-8", (error, body) => {
      if (error) return fail(error);
      say("message", body, message.headers.color ?? "");
      client.ack(message);
      if (body === "two") {
        client.disconnect((error) => {
          if (error) return fail(error);
          say("bye");
          process.exit(0);
        });
      }
    });
  });
  const options = { onReceipt: () => say("receipt") };
  client.sendString({ destination, color: "red" }, "zero", options, () => {
    const transaction = client.begin();
    for (const body of ["one", "two"]) transaction.send({ destination }).end(body);
    transaction.commit();
  });
});
