// An identity provider for tests: the certified library oidc-provider, with accounts of any name.
// Arguments: issuer, port, audience.
import { generateKeyPairSync } from 'node:crypto';
import Provider from 'oidc-provider';

const [issuer, port, audience] = process.argv.slice(2);
const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const key = { ...privateKey.export({ format: 'jwk' }), kid: 'first', use: 'sig', alg: 'RS256' };
const redirect = 'https://app.example.com/signed-in';

const provider = new Provider(issuer, {
  jwks: { keys: [key] },
  cookies: { keys: ['only for tests'] },
  clients: [
    { client_id: 'app', client_secret: 'secret', redirect_uris: [redirect] },
    {
      client_id: 'reports',
      client_secret: 'secret',
      grant_types: ['client_credentials'],
      redirect_uris: [],
      response_types: [],
    },
  ],
  features: {
    devInteractions: { enabled: true },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => audience,
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        audience,
        scope: '',
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
  extraTokenClaims: () => ({ scopes: ['agents:read', 'agents:assistant:run', 'sessions:read'] }),
});
provider.proxy = true;
provider.listen(Number(port), '127.0.0.1', () => console.log('ready'));
